"""Every version starts, and returns the produced records."""

from __future__ import annotations

import pytest

from allocator.testing import ClusterError, LocalCluster, UnknownVersion, produce
from allocator.testing.probe import api_versions, four_letter_word
from allocator.testing.topics import zookeeper_client
from allocator.testing.versions import KAFKA, NEWEST, USUAL_ZOOKEEPER, ZOOKEEPER
from tests.testing.read_back import records_of

QUICK = {"0.8.2.2", "3.9.1", NEWEST}
VERSIONS = [v if v in QUICK else pytest.param(v, marks=pytest.mark.long) for v in KAFKA]


@pytest.fixture(params=VERSIONS)
def cluster(request, cluster_factory):
    return cluster_factory(request.param)


def values_of(cluster, topic, count):
    """The values in the topic's first partition."""
    return [record.value for record in records_of(cluster.bootstrap, topic, 1, count)[0]]


def test_records_come_back_whether_the_version_is_known_or_found_out(cluster, topic_factory):
    topic = topic_factory(partitions=2, cluster=cluster)
    values = [b"%d" % number for number in range(100)]
    assert cluster.produce(topic, values) == {0: 50, 1: 50}
    assert produce(cluster.bootstrap, topic, values) == {0: 50, 1: 50}
    found = records_of(cluster.bootstrap, topic, 2, 200)
    assert {number: [r.value for r in records] for number, records in found.items()} == {
        0: values[::2] * 2, 1: values[1::2] * 2
    }  # fmt: skip


def test_the_version_is_the_requested_one(cluster):
    found = api_versions(cluster.brokers[0].port, timeout_s=30)
    if cluster.release.number < (0, 10):
        assert found is None
    else:
        assert (found[0][1] >= 3) == (cluster.release.number >= (0, 11))


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs_are_accepted_or_refused_with_a_reason(cluster, topic_factory, compression):
    topic = topic_factory(cluster=cluster)
    first = {"gzip": (0, 8), "snappy": (0, 8), "lz4": (0, 8, 2), "zstd": (2, 1)}[compression]
    if cluster.release.number >= first:
        values = [b"value %d" % number for number in range(1000)]
        assert cluster.produce(topic, values, compression=compression) == {0: 1000}
        assert values_of(cluster, topic, 1000) == values
    else:
        with pytest.raises(ClusterError):
            cluster.produce(topic, [b"x"] * 10, compression=compression)


def test_topics_grow_and_are_deleted_where_the_version_can(cluster, topic_factory):
    topic = topic_factory(cluster=cluster)
    cluster.add_partitions(topic, 3)
    assert cluster.produce(topic, [b"x"] * 9) == {0: 3, 1: 3, 2: 3}
    if cluster.version == "0.8.1.1":
        with pytest.raises(ClusterError, match="cannot delete topics"):
            cluster.delete_topic(topic)
    else:
        cluster.delete_topic(topic)
        assert topic not in cluster.metadata()[0].topics


@pytest.mark.parametrize(
    "cluster", [each if each == NEWEST else pytest.param(each, marks=pytest.mark.long) for each in KAFKA], indirect=True
)
def test_a_killed_broker_starts_again_on_the_same_data(cluster, topic_factory):
    topic = topic_factory(cluster=cluster)
    cluster.produce(topic, [b"before"])
    cluster.brokers[0].kill()
    cluster.brokers[0].start()
    cluster.produce(topic, [b"after"])
    assert values_of(cluster, topic, 2) == [b"before", b"after"]


@pytest.mark.servers
@pytest.mark.long
@pytest.mark.parametrize("version", KAFKA)
def test_three_brokers_lead_the_partitions(version):
    with LocalCluster(version, brokers=3) as cluster:
        cluster.create_topic("t", 6, replication=3)
        assert cluster.produce("t", [b"x"] * 60) == dict.fromkeys(range(6), 10)
        assert {cluster.leader("t", partition).id for partition in range(6)} == {0, 1, 2}


def test_a_kraft_cluster_has_a_zookeeper_beside_it(cluster_factory):
    cluster = cluster_factory(NEWEST)
    assert len(cluster.zookeepers) == 1
    assert "zookeeper" not in (cluster.brokers[0].directory / "server.properties").read_text()


@pytest.mark.servers
@pytest.mark.long
@pytest.mark.parametrize("zookeepers", [1, 3])
@pytest.mark.parametrize("version", [version for version in ZOOKEEPER if version != USUAL_ZOOKEEPER])
def test_every_zookeeper_starts_alone_and_as_an_ensemble(version, zookeepers):
    with LocalCluster(None, zookeepers=zookeepers, zookeeper_version=version) as cluster:
        for node in cluster.zookeepers:
            assert four_letter_word(node.port, "srvr").startswith(f"Zookeeper version: {version}-")
            assert "binding to port" in (node.directory / "server.log").read_text(), "its log settings have no effect"
        with zookeeper_client(cluster.zookeeper) as client:
            client.create("/kept", b"x")
        cluster.zookeepers[0].kill()
        cluster.zookeepers[0].start()
        with zookeeper_client(cluster.zookeeper) as client:
            assert client.get("/kept")[0] == b"x"


@pytest.mark.servers
@pytest.mark.long
@pytest.mark.parametrize("kafka", ["0.8.1.1", "0.9.0.1", "0.10.2.2"])
def test_kafka_of_its_time_beside_zookeeper_3_4(kafka):
    with LocalCluster(kafka, zookeeper_version="3.4.14") as cluster:
        cluster.create_topic("t", 2)
        assert cluster.produce("t", [b"x"] * 10) == {0: 5, 1: 5}


def test_an_unknown_version_names_the_known_ones():
    with pytest.raises(UnknownVersion, match=r"Kafka '0\.7' .* known: 0\.8\.1\.1, 0\.8\.2\.2, .*4\.1\.1"):
        LocalCluster("0.7")
    with pytest.raises(UnknownVersion, match=r"ZooKeeper '3\.3' .* known: 3\.4\.14, 3\.5\.10, .*3\.9\.5"):
        LocalCluster(zookeeper_version="3.3")
