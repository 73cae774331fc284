"""`allocator cluster` at a shell."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from allocator.testing import wait_until
from allocator.testing.ports import PortLease
from allocator.testing.probe import four_letter_word, metadata

COMMAND = [sys.executable, "-m", "allocator.cli", "cluster"]


def run(*arguments, **options):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, **options)


@contextlib.contextmanager
def started(*arguments):
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.servers
def test_servers_listen_on_the_requested_ports_until_a_signal_or_report_which_is_taken():
    lease = PortLease()
    kafka, zookeeper = lease.take(), lease.take()
    lease.release()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", zookeeper))
        taken.listen()
        refused = run("up", "--port", str(kafka), "--zookeeper-port", str(zookeeper))
        assert refused.returncode == 1
        assert refused.stderr == (
            f"error: port {zookeeper} on 127.0.0.1 is in use; stop the process that listens there, or choose another\n"
        )
    ports = ("--port", str(kafka), "--zookeeper-port", str(zookeeper))
    with started("up", "--kafka", "0.8.2.2", *ports, "--json") as process:
        shown = json.loads(process.stdout.readline())
        assert shown["kafka"] == "0.8.2.2"
        assert shown["bootstrap"] == f"127.0.0.1:{kafka}"
        assert shown["zookeeper"] == f"127.0.0.1:{zookeeper}"
        assert sorted(node["port"] for node in shown["nodes"]) == sorted((kafka, zookeeper))
        assert metadata(kafka) is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    for node in shown["nodes"]:
        assert gone(node["pid"])
        assert not os.path.exists(node["directory"])


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has ended meanwhile


@pytest.mark.servers
def test_a_signal_during_the_start_leaves_nothing_behind(tmp_path):
    with started("up", "--directory", str(tmp_path)) as process:
        wait_until(lambda: list(tmp_path.glob("kafka-0/output.log")), 30, "the broker to be launched")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    running = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in read(path)]
    assert not running


@pytest.mark.servers
def test_zookeeper_alone_has_the_requested_version():
    with started("up", "--kafka", "none", "--zookeeper-version", "3.4.14") as process:
        first = process.stdout.readline()
        assert first.startswith("ZooKeeper: 127.0.0.1:")
        said = four_letter_word(int(first.strip().rpartition(":")[2]), "srvr")
        assert said.startswith("Zookeeper version: 3.4.14-")


@pytest.mark.parametrize(("port", "nodes"), [("--port", "--brokers"), ("--zookeeper-port", "--zookeepers")])
def test_ports_beyond_the_last_one_are_refused(port, nodes):
    done = run("up", port, "65535", nodes, "2")
    assert done.returncode == 1
    assert "the 2 nodes would need ports above 65535" in done.stderr
    assert "Traceback" not in done.stderr
