"""No server outlives the process that started it."""

from __future__ import annotations

import json
import os
import signal
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


def child(zookeepers=1, then="", at_last="time.sleep(120)"):
    source = textwrap.dedent(START).format(zookeepers=zookeepers, then=then, at_last=at_last)
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)


def running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def all_gone(process):
    pids, directory = json.loads(process.stdout.readline())
    assert pids
    assert all(running(pid) for pid in pids)
    yield
    wait_until(lambda: not any(running(pid) for pid in pids), 30, "the servers to be gone")
    wait_until(lambda: not os.path.exists(directory), 30, f"{directory} to be removed")


@pytest.mark.servers
def test_nothing_is_left_after_kill_9():
    process = child(zookeepers=3)
    check = all_gone(process)
    next(check)
    process.kill()
    process.wait()
    assert next(check, None) is None


@pytest.mark.servers
def test_nothing_is_left_when_a_forked_child_lives_on():
    """The child holds the pipes open, so their end cannot tell; the supervisors look at their parent, too."""
    process = child(then="forked = os.fork() or time.sleep(60)")
    try:
        check = all_gone(process)
        next(check)
        process.kill()
        process.wait()
        assert next(check, None) is None
    finally:
        process.stdout.close()


@pytest.mark.servers
@pytest.mark.parametrize("at_last", ["sys.exit(1)", "raise ValueError('a test failed')", "os._exit(3)"])
def test_nothing_is_left_after_an_end_without_stop(at_last):
    process = child(at_last="time.sleep(0.1); " + at_last)
    check = all_gone(process)
    next(check)
    process.wait()
    assert next(check, None) is None


@pytest.mark.servers
def test_a_paused_server_dies_too():
    process = child(then="cluster.zookeepers[0].pause()")
    check = all_gone(process)
    next(check)
    process.kill()
    process.wait()
    assert next(check, None) is None


def test_orders_reach_the_process_and_its_end_is_known(tmp_path):
    process = ServerProcess([sys.executable, "-c", "print('hello', flush=True); input()"], tmp_path / "log")
    assert process.wait(10)  # its standard input is empty
    assert process.exit_code == 1
    assert "hello" in (tmp_path / "log").read_text()
    process.order("KILL")  # nothing happens
    process.close()
    process.close()


def test_the_end_by_a_signal_is_told(tmp_path):
    process = ServerProcess(["/bin/sleep", "60"], tmp_path / "log")
    assert process.alive
    assert not process.wait(0)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(10)
    assert process.exit_code == -signal.SIGKILL
    process.close()


def test_a_command_that_cannot_run_says_why(tmp_path):
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
def test_a_server_is_paused_with_all_of_its_threads_when_the_order_returns(tmp_path):
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
