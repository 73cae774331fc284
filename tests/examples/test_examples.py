"""Every example does on real servers what its docstring describes. The demo has its own tests."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.assignors import GroupView, Member, compute, resolve
from allocator.testing import LocalCluster, wait_until
from allocator.testing.ports import PortLease
from allocator.types import TopicPartition
from examples.tenants import by_tenant
from tests.repo.repository import ROOT, Program

CUSTOMERS = Counter({"ada": 3, "bob": 5, "cleo": 12})


def place_orders(cluster: LocalCluster, topic: str) -> None:
    cluster.produce(topic, [(name.encode(), b"%d" % n) for name, orders in CUSTOMERS.items() for n in range(orders)])


def get(port: int, path: str) -> tuple[int, Any]:
    """(status, JSON); (0, None) while no process listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except (urllib.error.URLError, ConnectionError):
        return 0, None


def test_the_web_service_counts_serves_and_hands_over(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic = topic_factory(4)
    place_orders(kafka_cluster, topic)
    lease = PortLease()
    ports = [lease.take(), lease.take()]

    def service(port: int) -> Program:
        where = ["--brokers", kafka_cluster.bootstrap, "--zookeeper", kafka_cluster.zookeeper]
        arguments = [*where, "--group", group, "--topic", topic, "--port", str(port)]
        return Program([sys.executable, "-m", "examples.web_service", *arguments], tmp_path / str(port))

    def counted() -> dict[str, int]:
        """Customer -> the count of all services together; -1 per service that does not respond."""
        found: Counter[str] = Counter()
        for port in ports:
            for name in CUSTOMERS:
                status, body = get(port, f"/customers/{name}")
                found[name] += body["orders"] if status == 200 else -1000
        return dict(found)

    with service(ports[0]) as first, service(ports[1]) as second:
        states = lambda: [get(port, "/ready")[1] for port in ports]  # noqa: E731
        wait_until(
            lambda: [state and state["partitions"] for state in states()] == [2, 2], 60, lambda: f"states: {states()}"
        )
        wait_until(lambda: counted() == CUSTOMERS, 30, lambda: f"counts: {counted()}")
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(30) == 0, second.lines()
        ports.pop()
        # this process counts the partitions of the other one from zero
        wait_until(lambda: counted() == CUSTOMERS, 30, lambda: f"counts: {counted()}")
        assert get(ports[0], "/ready") == (200, {"ready": True, "partitions": 4})
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(30) == 0, first.lines()
    lease.release()


# -- the allocator function ----------------------------------------------------------------------------------------


def view(members: int, tenants: dict[str, int], owned: dict[str, frozenset[TopicPartition]] | None = None) -> GroupView:
    """Each tenant has two topics of so many partitions; all members subscribe to all."""
    topics = {f"{tenant}.{what}": count for tenant, count in tenants.items() for what in ("bills", "orders")}
    everyone = tuple(Member(id=f"m{n}", name=f"m{n}", topics=frozenset(topics)) for n in range(members))
    return GroupView(members=everyone, partitions=topics, owned=owned or {})


def homes(assignment: Any) -> dict[str, set[str]]:
    """Tenant -> members that own a partition of it."""
    found: dict[str, set[str]] = {}
    for member, partitions in assignment.items():
        for partition in partitions:
            found.setdefault(partition.topic.partition(".")[0], set()).add(member)
    return found


def test_a_tenant_belongs_to_one_member_and_the_load_is_spread() -> None:
    chance = random.Random(7)
    tenants = {f"tenant{n}": chance.randint(1, 9) for n in range(60)}
    assignment = compute(resolve(by_tenant), view(5, tenants))
    assert all(len(members) == 1 for members in homes(assignment).values())
    counts = [len(partitions) for partitions in assignment.values()]
    assert max(counts) - min(counts) <= 2 * max(tenants.values())


def test_tenants_stay_when_a_member_joins_and_only_its_own_move_when_it_leaves() -> None:
    tenants = {f"tenant{n:02}": 2 for n in range(24)}
    before = compute(resolve(by_tenant), view(4, tenants))
    again = compute(resolve(by_tenant), view(4, tenants, dict(before)))
    assert again == before
    left = {member: held for member, held in before.items() if member != "m3"}
    fewer = compute(resolve(by_tenant), view(3, tenants, dict(left)))
    assert all(left[member] <= fewer[member] for member in left)
    more = compute(resolve(by_tenant), view(5, tenants, dict(before)))
    moved = [tenant for tenant, members in homes(more).items() if members != homes(before)[tenant]]
    assert 0 < len(moved) <= 5


# -- the Spark job -------------------------------------------------------------------------------------------------


@pytest.mark.long  # a Spark of its own; test_spark_documents.py runs the job in the one that is there
def test_the_spark_job_writes_what_it_counted(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    pytest.importorskip("pyspark.sql.datasource", reason="pyspark 4.2 needs Python 3.10 or newer")
    parquet = pytest.importorskip("pyarrow.parquet")
    from allocator.testing.java import find_java

    topic = topic_factory(4)
    place_orders(kafka_cluster, topic)
    out = tmp_path / "counts"
    command = [sys.executable, "-m", "examples.spark_job", "--brokers", kafka_cluster.bootstrap]
    options = ["--topic", topic, "--out", str(out), "--master", "local[2]"]
    quiet = "--conf spark.ui.enabled=false --conf spark.driver.bindAddress=127.0.0.1 --driver-memory 512m pyspark-shell"
    environ = {**os.environ, "JAVA_HOME": str(find_java(oldest=17).home), "PYSPARK_SUBMIT_ARGS": quiet}
    environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    done = subprocess.run([*command, *options], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-4000:]
    table = parquet.read_table(out).to_pydict()
    assert dict(zip(table["key"], table["records"])) == CUSTOMERS
