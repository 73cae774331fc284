"""The public fixtures."""

from __future__ import annotations

from allocator.testing.topics import zookeeper_client


def test_the_chroot_exists_and_is_empty(zk_chroot):
    with zookeeper_client(zk_chroot) as client:
        assert client.get_children("/") == []
        client.create("/left/behind", makepath=True)


def test_a_cluster_is_shared_by_its_arguments(cluster_factory, kafka_cluster, zookeeper):
    assert cluster_factory() is kafka_cluster
    assert cluster_factory("3.9.1", brokers=1) is kafka_cluster
    assert cluster_factory(kafka=None) is zookeeper
    assert zookeeper is not kafka_cluster


def test_a_shared_server_may_be_killed(kafka_cluster, zookeeper):
    kafka_cluster.brokers[0].pause()
    zookeeper.zookeepers[0].kill()


def test_what_an_earlier_test_killed_is_up_again(kafka_cluster, zookeeper):
    assert all(node.alive and not node.paused for node in kafka_cluster.nodes + zookeeper.nodes)
