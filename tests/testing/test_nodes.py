"""Servers that are stopped, killed, paused and resumed, alone and in ensembles of three."""

from __future__ import annotations

import asyncio

import pytest

from allocator.testing import ClusterError, LocalCluster, ServerStartFailed, wait_until
from allocator.testing.probe import four_letter_word, metadata, zookeeper_mode
from allocator.testing.topics import zookeeper_client


@pytest.fixture(scope="module")
def three(cluster_factory):
    return cluster_factory("3.9.1", brokers=3, zookeepers=3)


@pytest.mark.long
def test_replicas_go_round_the_brokers(three, topic_factory):
    topic = topic_factory(partitions=6, replication=3, cluster=three)
    states = three.metadata()[0].topics[topic]
    assert [states[partition].leader for partition in range(6)] == [0, 1, 2, 0, 1, 2]
    assert {tuple(sorted(state.replicas)) for state in states.values()} == {(0, 1, 2)}


@pytest.mark.long
def test_partitions_move_from_a_killed_broker(three, topic_factory):
    topic = topic_factory(partitions=3, replication=3, cluster=three)
    node = three.leader(topic, 1)
    node.kill()
    assert node.pid is None
    wait_until(lambda: three.leader(topic, 1) not in (None, node), 30, "another broker to lead")
    assert three.produce(topic, [(None, b"x", 1)] * 10) == {1: 10}
    node.start()
    wait_until(
        lambda: all(node.id in view.topics[topic][1].isr for view in three.metadata()), 30, "the broker to be in sync"
    )


@pytest.mark.long
def test_the_ensemble_outlives_its_leader(three):
    leader = next(node for node in three.zookeepers if zookeeper_mode(node.port) == "leader")
    others = [node for node in three.zookeepers if node is not leader]
    with zookeeper_client(three.zookeeper) as client:
        client.create("/outlives")
        leader.kill()
        wait_until(lambda: "leader" in [zookeeper_mode(node.port) for node in others], 30, "a new leader")
        assert client.retry(client.exists, "/outlives")
    leader.start()
    assert zookeeper_mode(leader.port) == "follower"


def test_a_paused_node_does_not_respond_until_it_is_resumed(zookeeper, kafka_cluster):
    node, broker = zookeeper.zookeepers[0], kafka_cluster.brokers[0]
    pid = node.pid
    node.pause()
    assert node.alive
    assert node.paused
    assert zookeeper_mode(node.port, timeout_s=0.3) is None
    node.resume()
    wait_until(lambda: zookeeper_mode(node.port) == "standalone", 30, "the node to respond again")
    assert node.pid == pid
    broker.pause()
    assert metadata(broker.port, timeout_s=0.3) is None
    broker.start()  # resumes it: the process never ended
    assert metadata(broker.port) is not None


def test_sessions_may_be_as_short_as_a_second(zookeeper):
    assert "minSessionTimeout=1000\n" in four_letter_word(zookeeper.zookeepers[0].port, "conf")


def test_replication_needs_brokers(kafka_cluster, unique_name):
    with pytest.raises(ClusterError, match="replication 2 needs that many running brokers; there are 1"):
        kafka_cluster.create_topic(unique_name(), replication=2)


@pytest.mark.servers
def test_a_failed_start_shows_the_log_and_leaves_nothing(tmp_path):
    cluster = LocalCluster(broker_config={"log.retention.hours": "plenty"}, directory=tmp_path)
    with pytest.raises(ServerStartFailed) as caught:
        cluster.start()
    text = str(caught.value)
    assert "Kafka broker 0" in text
    assert "log.retention.hours" in text
    assert "plenty" in text
    assert cluster.nodes == []


@pytest.mark.servers
def test_a_zookeeper_that_cannot_start_ends_the_wait_of_the_broker(tmp_path):
    with pytest.raises(ServerStartFailed, match=r"(?s)ZooKeeper 1 .*Invalid config.*soon"):
        LocalCluster(zookeeper_config={"tickTime": "soon"}, directory=tmp_path).start()


@pytest.mark.long
def test_settings_of_a_user_know_the_ports(cluster_factory):
    listeners = "PLAINTEXT://127.0.0.1:{port},OTHER://127.0.0.1:{port2}"
    protocols = "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"
    with LocalCluster(broker_config={"listeners": listeners, "listener.security.protocol.map": protocols}) as cluster:
        text = (cluster.brokers[0].directory / "server.properties").read_text()
        second = int(text.partition("OTHER://127.0.0.1:")[2].split()[0])
        assert metadata(second) is not None


@pytest.mark.servers
async def test_async_with_leaves_the_loop_free_and_keeps_a_given_directory(tmp_path):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    async with LocalCluster(None, directory=tmp_path) as cluster:
        assert zookeeper_mode(cluster.zookeepers[0].port) == "standalone"
    ticking.cancel()
    assert ticks > 5
    assert (tmp_path / "zookeeper-1" / "server.log").exists()
    cluster.stop()  # twice is safe


@pytest.mark.servers
async def test_a_cancelled_start_leaves_nothing():
    cluster = LocalCluster(None)

    async def enter():
        async with cluster:
            pytest.fail("it was cancelled before")

    entering = asyncio.ensure_future(enter())
    await asyncio.sleep(0)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert cluster.nodes == []


@pytest.mark.parametrize(("brokers", "zookeepers"), [(0, 1), (1, 0)])
def test_too_few_servers_are_refused(brokers, zookeepers):
    with pytest.raises(ClusterError):
        LocalCluster("3.9.1", brokers, zookeepers)
