"""No server outlives the process that started it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from allocator.testing import wait_until
from allocator.testing.node import ServerProcess
from allocator.testing.ports import PortLease

START = """
    import json, os, sys, time
    from allocator.testing import LocalCluster
    cluster = LocalCluster(None, zookeepers={zookeepers})
    cluster.start()
    {then}
    print(json.dumps([[node.pid for node in cluster.nodes], str(cluster.directory)]), flush=True)
    {at_last}
"""


def running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.servers
@pytest.mark.parametrize(
    ("zookeepers", "then", "at_last"),
    [
        pytest.param(3, "", "time.sleep(120)", id="kill-9"),
        # the forked child keeps the pipes open, so the supervisors also check their parent
        pytest.param(1, "forked = os.fork() or time.sleep(60)", "time.sleep(120)", id="forked child"),
        pytest.param(1, "cluster.zookeepers[0].pause()", "time.sleep(120)", id="paused server"),
        pytest.param(1, "", "time.sleep(0.1); sys.exit(1)", id="exit"),
    ],
)
def test_servers_and_files_are_gone_after_the_end_of_the_process_that_started_them(zookeepers, then, at_last):
    source = textwrap.dedent(START).format(zookeepers=zookeepers, then=then, at_last=at_last)
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    try:
        pids, directory = json.loads(process.stdout.readline())
        assert len(pids) == zookeepers
        assert all(running(pid) for pid in pids)
        if "120" in at_last:
            process.kill()
        process.wait()
        wait_until(lambda: not any(running(pid) for pid in pids), 30, "the servers to be gone")
        wait_until(lambda: not os.path.exists(directory), 30, f"{directory} to be removed")
    finally:
        process.stdout.close()


def test_the_end_of_a_process_and_its_exit_code_are_known(tmp_path):
    process = ServerProcess([sys.executable, "-c", "print('hello', flush=True); input()"], tmp_path / "log")
    assert process.wait(10)  # its standard input is empty
    assert process.exit_code == 1
    assert "hello" in (tmp_path / "log").read_text()
    process.order("KILL")  # nothing happens
    process.close()
    process.close()


def test_a_command_that_cannot_run_logs_the_reason(tmp_path):
    process = ServerProcess(["/no/such/java"], tmp_path / "log")
    assert process.wait(10)
    assert process.exit_code == 127
    assert "cannot run /no/such/java" in (tmp_path / "log").read_text()
    process.close()


def test_leased_ports_are_not_leased_twice():
    first, second = PortLease(), PortLease()
    ports = [lease.take() for lease in (first, second) for _ in range(50)]
    assert len(set(ports)) == 100
    first.release()
    second.release()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc, which has the states of threads")
def test_a_server_is_paused_with_all_of_its_threads_when_the_request_returns(tmp_path):
    program = "import threading\nfor _ in range(8): threading.Thread(target=lambda: exec('while True: pass')).start()"
    process = ServerProcess([sys.executable, "-c", program], tmp_path / "log")
    try:
        tasks = Path(f"/proc/{process.pid}/task")
        wait_until(lambda: len(list(tasks.iterdir())) > 8, 30, "its threads")
        for _ in range(20):
            process.order("STOP")
            process.order("STOP")  # is stopped already
            assert {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()} == {"T"}
            process.order("CONT")
    finally:
        process.close()
