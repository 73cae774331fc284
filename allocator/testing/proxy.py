"""A TCP proxy that simulates network faults. A test switches them on and off at run time.

It forwards clients' connections to one server on this machine. Like TCP, it never changes, reorders or loses bytes
within a connection that stays open.

    with FaultProxy(9092) as proxy:
        consumer = Consumer("orders", brokers=proxy.address, ...)
        proxy.drop()                              # no bytes pass, no connection closes
        proxy.heal()                              # held bytes arrive, as after a TCP retransmission
        proxy.latency(0.2, direction="to_client")
        proxy.drop(client=worker.pid)             # only connections of that process; Linux
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from .errors import ClusterError

Direction = Literal["to_server", "to_client", "both"]
WAYS: tuple[Literal["to_server", "to_client"], ...] = ("to_server", "to_client")

_CHUNK = 16_384
_HELD_CHUNKS = 64  # about the size of a connection's kernel buffers; a full queue makes the sender wait
_RUN_TIMEOUT_S = 60.0  # a busy machine takes seconds to list its connections
_PROC = Path("/proc")


@dataclass(frozen=True)
class _Direction:
    """The faults of one direction."""

    latency_s: float = 0.0
    bytes_per_s: float | None = None
    dropped: bool = False


@dataclass(eq=False)
class _Link:
    """A connection of a client, and its connection to the server."""

    client: asyncio.StreamWriter
    port: int
    server: asyncio.StreamWriter | None = None
    pid: int | None = None
    """The process that opened the connection, if a fault is limited to that process."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class FaultProxy:
    """Listens on 127.0.0.1 and forwards to `server_port` of the same host.

    Methods may be called from threads and coroutines: they return at once, except `start` and `stop`, which take
    milliseconds. The proxy has its own thread, so a busy event loop does not slow it down.

    `direction` is "to_server", "to_client" or "both". `client` limits a fault to present and future connections of the
    process with that id; it needs /proc (Linux), and raises ClusterError elsewhere. A process with
    its own faults is not affected by the others.
    """

    def __init__(self, server_port: int, *, port: int = 0) -> None:
        self.server_port = server_port
        self.port = port
        """The port of the proxy; if 0, `start` chooses one."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: asyncio.AbstractServer | None = None
        self._links: set[_Link] = set()
        self._faults: dict[int | None, dict[str, _Direction]] = {None: dict.fromkeys(WAYS, _Direction())}
        self._changed: asyncio.Event

    def __repr__(self) -> str:
        return f"<FaultProxy 127.0.0.1:{self.port} to {self.server_port}, {self.connections} connections>"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """Number of connected clients."""
        return len(self._links)

    # -- start and stop -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts listening. Raises OSError if the port is in use."""
        if self._loop is not None:
            raise ClusterError("the proxy was started already")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        try:
            self._run(self._listen)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Closes all connections. May be called twice."""
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._close(), loop).result(10.0)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def __enter__(self) -> FaultProxy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> FaultProxy:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    # -- faults --------------------------------------------------------------------------------------------------

    def latency(self, seconds: float, *, direction: Direction = "both", client: int | None = None) -> None:
        """Delays the bytes that are sent from now on. 0 removes the delay."""
        if not 0 <= seconds < float("inf"):
            raise ClusterError(f"latency must be at least 0 seconds, not {seconds!r}")
        self._set(direction, client, latency_s=seconds)

    def bandwidth(self, bytes_per_s: float | None, *, direction: Direction = "both", client: int | None = None) -> None:
        """Limits the rate of each connection. None removes the limit."""
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise ClusterError(f"bandwidth must be bytes per second, more than 0, or None, not {bytes_per_s!r}")
        self._set(direction, client, bytes_per_s=bytes_per_s)

    def drop(self, *, direction: Direction = "both", client: int | None = None) -> None:
        """Holds back all traffic until `heal`, including the close of a connection.

        The kernel still accepts new connections, but they hang.
        """
        self._set(direction, client, dropped=True)

    def reset(self, *, client: int | None = None) -> None:
        """Sends RST to both sides of each open connection. New connections are not affected."""

        async def reset() -> None:
            for link in await self._links_of(client):
                self._abort(link)

        self._run(reset)

    def heal(self, *, client: int | None = None) -> None:
        """Ends all faults, or those of one process, and forwards the bytes that `drop` has held."""

        async def heal() -> None:
            if client is None:
                self._faults = {None: dict.fromkeys(WAYS, _Direction())}
            else:
                self._faults.pop(client, None)
            self._wake()

        if self._loop is not None:
            self._run(heal)

    # -- on its own thread ---------------------------------------------------------------------------------------

    def _run(self, work: Callable[[], Any]) -> None:
        """Runs `work` on the proxy's thread and waits for it; raises its error."""
        loop = self._loop
        if loop is None:
            raise ClusterError("the proxy does not run; call start() first")

        async def run() -> None:
            result = work()
            if asyncio.iscoroutine(result):
                await result

        asyncio.run_coroutine_threadsafe(run(), loop).result(_RUN_TIMEOUT_S)

    async def _listen(self) -> None:
        self._changed = asyncio.Event()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=_CHUNK)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [task for link in self._links for task in link.tasks]
        for link in tuple(self._links):
            self._abort(link)
        if tasks:
            await asyncio.wait(tasks)

    def _set(self, direction: Direction, client: int | None, **change: Any) -> None:
        if direction != "both" and direction not in WAYS:
            raise ClusterError(f"direction must be 'to_server', 'to_client' or 'both', not {direction!r}")

        async def change_it() -> None:
            ways = self._faults.setdefault(client, dict.fromkeys(WAYS, _Direction()))
            for way in WAYS if direction == "both" else (direction,):
                ways[way] = replace(ways[way], **change)
            if client is not None:
                await self._links_of(client)  # sets `pid` of open connections
            self._wake()

        self._run(change_it)

    async def _links_of(self, client: int | None) -> list[_Link]:
        if client is not None:
            # in a thread: the kernel may take seconds, and the other connections go on meanwhile
            ports = await asyncio.to_thread(_ports_of, client, self.port)
            for link in self._links:
                if link.port in ports:
                    link.pid = client
        return [link for link in self._links if client is None or link.pid == client]

    def _way(self, link: _Link, way: str) -> _Direction:
        return self._faults.get(link.pid, self._faults[None])[way]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer, writer.get_extra_info("peername")[1])
        task = asyncio.current_task()
        assert task is not None
        link.tasks.append(task)
        self._links.add(link)
        try:
            for pid in [pid for pid in self._faults if pid is not None]:
                if link.port in await asyncio.to_thread(_ports_of, pid, self.port):
                    link.pid = pid
            await self._serve(link, reader)
        except (OSError, asyncio.CancelledError):
            pass  # the server refused, one side sent RST, or `_abort` ran: the proxy sends RST to both sides
        finally:
            self._abort(link)

    async def _serve(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while self._way(link, "to_server").dropped:
            await self._changed.wait()
        onward, link.server = await asyncio.open_connection("127.0.0.1", self.server_port, limit=_CHUNK)
        for each in (link.client, link.server):
            each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await _all(
            self._pump(link, "to_server", reader, link.server), self._pump(link, "to_client", onward, link.client)
        )

    async def _pump(
        self, link: _Link, way: Literal["to_server", "to_client"], reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        # bytes in transit: a queue, so that latency does not limit the bandwidth
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_HELD_CHUNKS)
        loop = asyncio.get_running_loop()

        async def read() -> None:
            while True:
                data = await reader.read(_CHUNK)
                await queue.put((loop.time() + self._way(link, way).latency_s, data))
                if not data:
                    return

        async def send() -> None:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                while self._way(link, way).dropped:
                    await self._changed.wait()
                if not data:
                    with contextlib.suppress(OSError):
                        writer.write_eof()
                    return
                speed = self._way(link, way).bytes_per_s
                writer.write(data)
                await writer.drain()
                if speed is not None:
                    await asyncio.sleep(len(data) / speed)

        await _all(read(), send())

    def _abort(self, link: _Link) -> None:
        self._links.discard(link)
        for writer in (link.client, link.server):
            if writer is not None:
                transport = writer.transport
                with contextlib.suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
                transport.abort()
        for task in link.tasks:
            if task is not asyncio.current_task():
                task.cancel()


async def _all(*works: Any) -> None:
    """Runs all coroutines to their end. The first failure cancels the others and is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _ports_of(pid: int, server_port: int) -> set[int]:
    """Returns the local ports of a process's connections to `server_port`."""
    if not (_PROC / "self" / "fd").is_dir():
        raise ClusterError("a fault for one process needs /proc, which this system does not have; omit `client`")
    inodes = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(_PROC / str(pid) / "fd"):
            with contextlib.suppress(OSError):
                found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry.path))
                if found:
                    inodes.add(found[1])
    return {local for local, remote, inode in _connections() if remote == server_port and inode in inodes}


def _connections() -> Iterable[tuple[int, int, str]]:
    """Yields (local port, remote port, inode) of the TCP connections of this machine."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            yield int(words[1].rsplit(":", 1)[1], 16), int(words[2].rsplit(":", 1)[1], 16), words[9]
