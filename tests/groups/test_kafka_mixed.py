"""Members of allocator, kafka-python, aiokafka and confluent-kafka in one group, with each of them as leader."""

from __future__ import annotations

from typing import Any

import pytest

from tests.groups.kafka_clients import ASSIGNORS, Confluent, KafkaPython
from tests.groups.kafka_members import ClassicMember, shared, start, topic_with
from tests.groups.members import History
from tests.kafka_versions import versions

pytestmark = pytest.mark.deadline(240)

long = pytest.mark.long
NEW = "3.9.1"

# aiokafka knows no brokers as old as 0.9
PAIRS = [
    *(pytest.param("0.9.0.1", other, "range", marks=long) for other in (KafkaPython, Confluent)),
    *(pytest.param("0.10.2.2", other, each, marks=long) for other in ASSIGNORS for each in ("range", "roundrobin")),
    *(pytest.param(NEW, other, each, marks=long) for other, assignors in ASSIGNORS.items() for each in assignors[:-1]),
    *(pytest.param(NEW, other, assignors[-1]) for other, assignors in ASSIGNORS.items()),
    *(
        pytest.param(version, other, assignors[-1], marks=long)
        for version in versions("1.1.1", without=[NEW])
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
