"""pytest fixtures of real servers, after `pip install 'zk-partition-allocator[testing]'`.

Servers start when the first test needs them, and all tests of a session share them. The plugin repairs a server that a
test broke before the next test. Each test has its own chroot, topics and group with unique names.

    def test_it(kafka_cluster, topic_factory, zk_chroot, group): ...

A test marked `kafka_versions("0.8.2.2", "3.9.1")` runs on each of these, with the same records (docs/testing.md). A
fixture imports its modules when a test uses it.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from .cluster import LocalCluster
    from .kafka_versions import Outcome, Outcomes, Replay
    from .proxy import FaultProxy


class ClusterFactory:
    """`factory(kafka="0.8.2.2", brokers=3)` returns a running cluster, the same one for the same arguments.

    It takes the arguments of `LocalCluster`; the session sets the default of `zookeeper_version`. `running` has the
    clusters of this session.
    """

    def __init__(self, backend: str, zookeeper_version: str) -> None:
        self._backend = backend
        self._zookeeper_version = zookeeper_version
        # pytest-xdist sets the same value in all workers of a run
        self._session = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid4().hex
        self._clusters: dict[str, Any] = {}

    def __call__(self, kafka: str | None = "3.9.1", brokers: int = 1, zookeepers: int = 1, **options: Any) -> Any:
        options.setdefault("zookeeper_version", self._zookeeper_version)
        key = repr((kafka, brokers if kafka else 0, zookeepers, _frozen(options)))
        if key not in self._clusters:
            self._clusters[key] = self._started(kafka, brokers, zookeepers, options)
        return self._clusters[key]

    @property
    def running(self) -> list[Any]:
        return list(self._clusters.values())

    def heal(self) -> None:
        """Repairs each cluster. If that fails, warns and restarts the cluster without its data.

        If the restart fails too, the cluster stays stopped, so that only the tests that use it fail.
        """
        for key, cluster in list(self._clusters.items()):
            try:
                cluster.heal()
            except Exception as error:  # noqa: BLE001 - a test may break anything
                warnings.warn(f"{cluster!r} cannot be repaired and restarts without its data: {error}", stacklevel=2)
                cluster.stop()
                try:
                    cluster.start()
                except Exception as failure:  # noqa: BLE001 - other tests need not fail
                    del self._clusters[key]
                    warnings.warn(f"{cluster!r} did not restart: {failure}", stacklevel=2)

    def close(self) -> None:
        while self._clusters:
            self._clusters.popitem()[1].stop()

    def _started(self, kafka: str | None, brokers: int, zookeepers: int, options: dict[str, Any]) -> Any:
        from .errors import NoContainerEngine

        if self._backend == "containers":
            from .containers import ContainerCluster as Backend
        else:
            from .cluster import LocalCluster as Backend  # type: ignore[assignment]
            from .training import make_archives

            make_archives(kafka, self._session, options["zookeeper_version"])
        cluster = Backend(kafka, brokers, zookeepers, **options)
        try:
            cluster.start()
        except NoContainerEngine as error:
            pytest.skip(str(error))
        return cluster


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("allocator")
    group.addoption(
        "--allocator-backend",
        choices=("local", "containers"),
        default="local",
        help="how to run the servers: as local Java processes (default) or in containers",
    )
    group.addoption(
        "--kafka-versions",
        metavar="A,B",
        help="versions for tests marked kafka_versions, instead of the mark's; the first is the reference",
    )
    group.addoption(
        "--zookeeper-version",
        metavar="VERSION",
        help="version of ZooKeeper in clusters with Kafka and in the fixture `zookeeper`",
    )


_FACTORY = pytest.StashKey[ClusterFactory]()
_VERSIONS = pytest.StashKey[Optional[Sequence[str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", 'kafka_versions("0.8.2.2", "3.9.1", ...): run on each of these versions of Kafka (allocator)'
    )
    # kafka-python reads its schemas in a deprecated way, more than 200 times
    config.addinivalue_line("filterwarnings", r"ignore:(read|open)_text is deprecated:DeprecationWarning")
    chosen = config.getoption("--kafka-versions")
    if chosen is not None:
        from .kafka_versions import versions_from

        names = [name.strip() for name in chosen.split(",") if name.strip()]
        config.stash[_VERSIONS] = versions_from(names, "--kafka-versions")
    keeper = config.getoption("--zookeeper-version")
    if keeper is not None:
        from .errors import UnknownVersion
        from .versions import zookeeper_jars

        try:
            zookeeper_jars(keeper)
        except UnknownVersion as error:
            raise pytest.UsageError(f"--zookeeper-version: {error}") from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("kafka_versions") or "kafka_version" in metafunc.fixturenames:
        from .kafka_versions import parametrize

        parametrize(metafunc, metafunc.config.stash.get(_VERSIONS, None))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Repairs the shared servers that an earlier test killed, before a test that may use them."""
    factory = item.config.stash.get(_FACTORY, None)
    if factory is not None and "cluster_factory" in getattr(item, "fixturenames", ()):
        factory.heal()


@pytest.fixture(scope="session")
def zookeeper_version(request: pytest.FixtureRequest) -> str:
    """ZooKeeper's version in `cluster_factory`: from `--zookeeper-version`, or from a parameter with
    `indirect=True`."""
    from .versions import USUAL_ZOOKEEPER

    chosen = getattr(request, "param", None) or request.config.getoption("--zookeeper-version")
    return chosen or USUAL_ZOOKEEPER


@pytest.fixture(scope="session")
def cluster_factory(pytestconfig: pytest.Config, zookeeper_version: str) -> Iterator[ClusterFactory]:
    """Returns the shared cluster for the arguments: `cluster_factory(kafka="0.8.2.2", brokers=3)`."""
    factory = ClusterFactory(pytestconfig.getoption("--allocator-backend"), zookeeper_version)
    pytestconfig.stash[_FACTORY] = factory
    yield factory
    factory.close()


@pytest.fixture(scope="session")
def kafka_cluster(cluster_factory: ClusterFactory) -> LocalCluster:
    """Kafka 3.9.1, one broker and one ZooKeeper node, shared."""
    cluster: LocalCluster = cluster_factory()
    return cluster


@pytest.fixture(scope="session")
def zookeeper(cluster_factory: ClusterFactory) -> LocalCluster:
    """One ZooKeeper node without Kafka, shared; `zookeeper.zookeeper` is its address."""
    cluster: LocalCluster = cluster_factory(kafka=None)
    return cluster


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """A function that returns unique names for topics, groups and znodes. They contain the name of the test."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:40]
    return lambda: f"{stem}-{uuid4().hex[:8]}"


@pytest.fixture
def zk_chroot(zookeeper: LocalCluster, unique_name: Callable[[], str]) -> Iterator[str]:
    """`host:port/chroot` of a new, empty chroot on the shared ZooKeeper; removed after the test."""
    from .topics import zookeeper_client

    path = f"/{unique_name()}"
    with zookeeper_client(zookeeper.zookeeper) as client:
        client.ensure_path(path)
    yield zookeeper.zookeeper + path
    zookeeper.heal()
    with zookeeper_client(zookeeper.zookeeper) as client:
        client.delete(path, recursive=True)


@pytest.fixture
def group(unique_name: Callable[[], str]) -> str:
    """A unique group id for this test."""
    return unique_name()


@pytest.fixture
def topic_factory(request: pytest.FixtureRequest, unique_name: Callable[[], str]) -> Iterator[Callable[..., str]]:
    """`topic_factory(partitions=1, replication=1, config=None, cluster=None)` -> the name of a new topic.

    Creates the topic on `kafka_cluster` unless another cluster is given. Deletes it after the test if the Kafka version
    can delete topics.
    """
    from .errors import TestingError

    made: list[tuple[LocalCluster, str]] = []

    def create(
        partitions: int = 1,
        replication: int = 1,
        config: Mapping[str, str] | None = None,
        cluster: LocalCluster | None = None,
    ) -> str:
        where: LocalCluster = request.getfixturevalue("kafka_cluster") if cluster is None else cluster
        name = unique_name()
        where.create_topic(name, partitions, replication, config)
        made.append((where, name))
        return name

    yield create
    for where, name in made:
        # the cluster may be broken or unable to delete topics; a leftover harms no test, because names are unique
        with contextlib.suppress(TestingError):
            where.delete_topic(name, timeout_s=0)


@pytest.fixture
def kafka_version(request: pytest.FixtureRequest) -> str:
    """The current version of a test marked `kafka_versions`."""
    version: str = request.param
    return version


@pytest.fixture
def versioned_cluster(kafka_version: str, cluster_factory: ClusterFactory) -> LocalCluster:
    """A shared cluster of the current version, with one broker and one ZooKeeper node."""
    cluster: LocalCluster = cluster_factory(kafka=kafka_version)
    return cluster


@pytest.fixture
def replay(
    versioned_cluster: LocalCluster, unique_name: Callable[[], str], request: pytest.FixtureRequest
) -> Iterator[Replay]:
    """`replay(recording)` -> {topic of the recording: topic of the cluster with its records}."""
    from .kafka_versions import Replay

    replaying = Replay(versioned_cluster, unique_name, request.path.parent)
    yield replaying
    replaying.delete()


@pytest.fixture(scope="session")
def _outcomes() -> Outcomes:
    from .kafka_versions import Outcomes

    return Outcomes()


@pytest.fixture
def outcome(_outcomes: Outcomes, kafka_version: str, request: pytest.FixtureRequest) -> Outcome:
    """`outcome.same(value)` fails the test with a diff if the value differs from the value on the first version."""
    from .kafka_versions import Outcome

    item = request.node
    instead = request.config.stash.get(_VERSIONS, None)
    versions = instead or item.get_closest_marker("kafka_versions").args
    others = {name: value for name, value in item.callspec.params.items() if name != "kafka_version"}
    test = f"{item.nodeid.partition('[')[0]} {sorted(others.items(), key=repr)}"
    return Outcome(_outcomes, test, kafka_version, versions[0])


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[int], FaultProxy]]:
    """`fault_proxy(port)` -> a running `FaultProxy` for that port of 127.0.0.1; stopped after the test."""
    from .proxy import FaultProxy

    with contextlib.ExitStack() as proxies:
        yield lambda port: proxies.enter_context(FaultProxy(port))


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted((key, _frozen(item)) for key, item in value.items())
    return value
