"""Members of allocator, kafka-python, aiokafka and confluent-kafka in one group, with each of them as leader."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from kafka_clients import ASSIGNORS, AioKafka, Confluent, KafkaPython
from kafka_members import ClassicMember, shared, start, topic_with
from members import History

from allocator.testing.versions import NEWEST

pytestmark = pytest.mark.deadline(240)

long = pytest.mark.long
NEW = "3.9.1"

# aiokafka knows no brokers as old as 0.9
PAIRS = [
    *(pytest.param("0.9.0.1", other, "range", marks=long) for other in (KafkaPython, Confluent)),
    *(pytest.param("0.10.2.2", other, each, marks=long) for other in ASSIGNORS for each in ("range", "roundrobin")),
    *(pytest.param(NEW, other, each) for other, assignors in ASSIGNORS.items() for each in assignors),
    *(
        pytest.param(version, other, assignors[-1], marks=long)
        for version in ("1.1.1", "2.8.2", "4.1.1", NEWEST)
        for other, assignors in ASSIGNORS.items()
    ),
]


@pytest.mark.parametrize(("kafka", "other", "assignor"), PAIRS)
async def test_members_of_allocator_and_another_client_are_one_group_whoever_leads(
    kafka: str, other: Any, assignor: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory, kafka=kafka)
    counts = await topic_with(cluster, unique_name(), 6)
    history = History()
    about = {"assignors": [assignor], "history": history}
    peer = other(cluster.bootstrap, group, counts, assignor, kafka, history=history)
    async with ClassicMember(cluster.bootstrap, group, counts, **about) as one:
        await shared([one], counts)
        async with peer:
            await shared([one, peer], counts)
            assert one.leads  # the first member leads
            async with ClassicMember(cluster.bootstrap, group, counts, name="third", **about) as third:
                await shared([one, peer, third], counts)
        await shared([one], counts)
        assert one.owner.errors == []
    peer = other(cluster.bootstrap, group, counts, assignor, kafka, name="first", history=history)
    async with peer:
        await shared([peer], counts)
        async with ClassicMember(cluster.bootstrap, group, counts, name="second", **about) as one:
            await shared([one, peer], counts)
            assert not one.leads
            assert one.owner.errors == []
        await shared([peer], counts)
    assert history.overlaps() == []


@pytest.mark.parametrize(
    ("assignor", "others"),
    [
        pytest.param("range", [KafkaPython, AioKafka, Confluent], marks=long),
        ("roundrobin", [KafkaPython, AioKafka, Confluent]),
        pytest.param("sticky", [KafkaPython, AioKafka], marks=long),
        pytest.param("cooperative-sticky", [KafkaPython, Confluent], marks=long),
    ],
)
async def test_members_of_all_clients_come_and_go_in_any_order(
    assignor: str, others: list[Any], cluster_factory: Any, unique_name: Any, group: str
) -> None:
    """Each joins once and leaves once; the first leave decides the next leader."""
    cluster = await start(cluster_factory, kafka=NEW)
    counts = {**await topic_with(cluster, unique_name(), 7), **await topic_with(cluster, unique_name(), 5)}
    history = History()
    async with contextlib.AsyncExitStack() as stack:
        here: dict[Any, contextlib.AsyncExitStack] = {}

        async def come(member: Any) -> None:
            here[member] = await stack.enter_async_context(contextlib.AsyncExitStack())
            await here[member].enter_async_context(member)
            await shared(here, counts, 60)

        async def go(member: Any) -> None:
            await here.pop(member).aclose()
            await shared(here, counts, 60)

        def classic(name: str) -> ClassicMember:
            return ClassicMember(cluster.bootstrap, group, counts, name=name, history=history, assignors=[assignor])

        first, *rest = (each(cluster.bootstrap, group, counts, assignor, history=history) for each in others)
        a, b = classic("a"), classic("b")
        await come(first)
        await come(a)
        for each in rest:
            await come(each)
        await go(first)
        await come(b)
        await go(a)
        for each in rest:
            await go(each)
        assert b.held
        assert a.owner.errors == b.owner.errors == []
    assert history.overlaps() == []
