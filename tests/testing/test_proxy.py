"""Slow, cut and reset connections, in each direction."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allocator.testing import FaultProxy, LocalCluster, wait_until
from allocator.testing import proxy as proxy_module
from allocator.testing.probe import metadata, zookeeper_mode
from allocator.testing.topics import zookeeper_client
from tests.constants import SetConstant

Proxies = Callable[[int], FaultProxy]
linux = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")


class Echo:
    """Sends received bytes back, in threads; records its connections."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.connections: list[socket.socket] = []
        self.heard: list[bytes] = []
        self.ends: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections.append(connection)
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(65536):
                self.heard.append(data)
                connection.sendall(data)
            self.ends.append("closed")
        except ConnectionResetError:
            self.ends.append("reset")
        except OSError:
            return  # the test is over, and has closed it
        connection.close()

    def close(self) -> None:
        self.listener.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@contextlib.contextmanager
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), 60) as connection:
        connection.settimeout(60)
        yield connection


def quickest(connection: socket.socket) -> float:
    """Seconds of the fastest of three responses, because the machine may be busy."""
    took = []
    for _ in range(3):
        began = time.monotonic()
        echoed(connection)
        took.append(time.monotonic() - began)
    return min(took)


def echoed(connection: socket.socket, data: bytes = b"hello") -> bytes:
    connection.sendall(data)
    response = b""
    while len(response) < len(data):
        chunk = connection.recv(65536)
        if not chunk:
            raise ConnectionError("closed")
        response += chunk
    return response


def silent(connection: socket.socket, seconds: float = 0.3) -> bool:
    """Neither data nor an end comes within that time."""
    return not select.select([connection], [], [], seconds)[0]


def test_without_faults_bytes_and_ends_pass_both_ways(echo: Echo, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(echo.port)
    data = bytes(range(256)) * 4000
    with client(proxy) as connection:
        responses: list[bytes] = []
        sending = threading.Thread(target=lambda: responses.append(echoed(connection, data)))
        sending.start()
        sending.join(20)
        assert responses == [data]
        assert proxy.connections == 1
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert echo.ends == ["closed"]
    wait_until(lambda: proxy.connections == 0, 30, "the connection to be forgotten")


@pytest.mark.parametrize(("direction", "seconds"), [("to_server", 0.2), ("to_client", 0.2), ("both", 0.4)])
def test_latency_adds_up_over_the_ways_it_holds_for(
    echo: Echo, fault_proxy: Proxies, direction: str, seconds: float
) -> None:
    proxy = fault_proxy(echo.port)
    with client(proxy) as connection:
        echoed(connection)
        proxy.latency(0.2, direction=direction)  # type: ignore[arg-type]
        assert seconds <= quickest(connection) < seconds + 0.19
        proxy.heal()
        assert quickest(connection) < 0.19


def test_bandwidth_is_a_bound(echo: Echo, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(echo.port)
    proxy.bandwidth(100_000, direction="to_client")
    with client(proxy) as connection:
        began = time.monotonic()
        echoed(connection, bytes(66_000))
        # the last chunk has arrived before its time is up
        assert time.monotonic() - began > 0.45


@pytest.mark.parametrize("direction", ["to_server", "to_client", "both"])
def test_a_black_hole_holds_what_is_sent_and_closes_nothing(echo: Echo, fault_proxy: Proxies, direction: str) -> None:
    proxy = fault_proxy(echo.port)
    with client(proxy) as connection:
        echoed(connection)
        proxy.drop(direction=direction)  # type: ignore[arg-type]
        connection.sendall(b"held")
        assert silent(connection)
        assert (b"held" in echo.heard) == (direction == "to_client")
        proxy.heal()
        assert connection.recv(10) == b"held"


def test_a_new_connection_into_a_black_hole_hangs_until_it_is_healed(echo: Echo, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(echo.port)
    proxy.drop()
    with client(proxy) as connection:
        connection.sendall(b"hello")
        assert silent(connection)
        assert not echo.connections
        proxy.heal()
        assert connection.recv(10) == b"hello"


def test_reset_reaches_both_sides(echo: Echo, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(echo.port)
    with client(proxy) as connection:
        echoed(connection)
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        wait_until(lambda: echo.ends == ["reset"], 30, "the server to be reset")
    with client(proxy) as connection:
        assert echoed(connection) == b"hello"


def test_a_server_that_is_down_refuses_through_the_proxy(fault_proxy: Proxies) -> None:
    # the reset may arrive before connect() has returned
    with pytest.raises(ConnectionResetError), client(fault_proxy(1)) as connection:
        connection.recv(1)


@linux
def test_a_fault_for_one_process_leaves_the_others_alone(echo: Echo, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(echo.port)
    code = """if True:
        import socket, sys
        for _ in range(2):
            connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
            while line := sys.stdin.readline().strip():
                if line == "again":
                    break
                connection.sendall(line.encode())
                print(connection.recv(100).decode(), flush=True)
    """
    with subprocess.Popen(
        [sys.executable, "-c", code, str(proxy.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None

        def command(word: str) -> None:
            assert other.stdin is not None
            other.stdin.write(word + "\n")
            other.stdin.flush()

        def nothing() -> bool:
            return not select.select([other.stdout], [], [], 0.3)[0]

        command("one")
        assert other.stdout.readline() == "one\n"
        with client(proxy) as connection:
            proxy.drop(client=other.pid)
            command("two")
            assert nothing()
            assert echoed(connection) == b"hello"
            proxy.heal(client=other.pid)
            assert other.stdout.readline() == "two\n"
            proxy.drop(client=other.pid)
            command("again")  # a connection that it opens only now
            command("three")
            assert nothing()
            assert echoed(connection) == b"hello"
            proxy.heal()
            assert other.stdout.readline() == "three\n"
            proxy.reset(client=other.pid)
            assert echoed(connection) == b"hello"
        other.kill()


@pytest.mark.servers
@pytest.mark.parametrize("version", ["0.8.2.2", pytest.param("3.9.1", marks=pytest.mark.long)])
def test_a_proxied_cluster_leads_clients_through_its_proxies(version: str) -> None:
    with LocalCluster(version, proxied=True) as cluster:
        broker, keeper = cluster.brokers[0], cluster.zookeepers[0]
        assert broker.proxy is not None
        assert keeper.proxy is not None
        cluster.create_topic("t", 1)
        assert cluster.bootstrap == broker.proxy.address != f"127.0.0.1:{broker.port}"
        assert cluster.produce("t", [b"x"] * 10) == {0: 10}
        known = metadata(broker.port)
        assert known is not None
        assert known.brokers == {0: ("127.0.0.1", broker.proxy.port)}
        with zookeeper_client(cluster.zookeeper) as zk:
            assert keeper.proxy.connections == 1, "the broker goes past it"
            assert zk.exists("/brokers/ids/0")
        keeper.proxy.drop()
        assert zookeeper_mode(keeper.proxy.port, 0.3) is None
        assert zookeeper_mode(keeper.port) == "standalone"
        cluster.heal()
        assert zookeeper_mode(keeper.proxy.port) == "standalone"


@linux
def test_connections_go_on_while_the_kernel_lists_them(
    fault_proxy: Proxies, echo: Echo, tmp_path: Path, set_constant: SetConstant
) -> None:
    """A fault for one process begins while the list of this machine's connections takes long to read."""
    for name in ("self/fd", f"{os.getpid()}/fd", "net"):
        (tmp_path / name).mkdir(parents=True)
    os.mkfifo(tmp_path / "net" / "tcp")  # its reader waits for a writer
    proxy = fault_proxy(echo.port)
    with client(proxy) as connection:
        connection.sendall(b"before")
        assert connection.recv(100) == b"before"
        set_constant(proxy_module, _PROC=tmp_path)
        cutting = threading.Thread(target=proxy.drop, kwargs={"client": os.getpid()})
        cutting.start()
        try:
            connection.settimeout(5)
            connection.sendall(b"meanwhile")
            assert connection.recv(100) == b"meanwhile"
            assert cutting.is_alive()
        finally:
            (tmp_path / "net" / "tcp").write_text("the titles of the columns\n")
            cutting.join(60)
