"""Recognisable secrets are found in no log line at any level, in no error and in no znode."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from allocator import AllocatorError, Consumer, TopicPartition, ZooKeeper
from allocator.cli.access import Access
from allocator.compat.group_config import ConsumerGroupConfig
from allocator.core.client import KafkaClient
from allocator.core.consumer.membership_config import MembershipConfig
from allocator.daemon.config import load
from allocator.errors import ConfigError
from allocator.migrate.storage import OffsetStore
from allocator.protocols.zookeeper import ZooKeeperClient
from allocator.testing import FaultProxy
from tests.joining import joined
from tests.security.secured import DIGEST, DIGEST_OPTIONS, KEY_PASSWORD, PASSWORDS, Secured, secrets_in

Topics = Callable[..., str]


class Everything(logging.Handler):
    """Collects each log line with its arguments."""

    def __init__(self) -> None:
        super().__init__(1)
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s %(args)r"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def everything() -> Iterator[Everything]:
    """All log records, from level 1 up."""
    handler, root = Everything(), logging.getLogger()
    for name in ("", "kafka", "kazoo", "kazoo.client", "allocator", "asyncio"):
        logging.getLogger(name).setLevel(1)
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)


async def session(secured: Secured, topic: str, group: str, listener: str, mechanism: str) -> str:
    """A member joins, reads, commits, loses its connections and leaves. Returns the `repr` of all objects."""
    options = {**secured.zookeeper_options(), **DIGEST_OPTIONS}
    with FaultProxy(int(secured.zookeeper.rpartition(":")[2])) as ensemble:
        async with Consumer(
            topic,
            brokers=secured.brokers(listener),
            zookeeper=ensemble.address,
            group=group,
            security=secured.kafka(listener, mechanism),
            membership=ZooKeeper(zookeeper_options=options, session_timeout_s=15.0),
        ) as consumer:
            assert await consumer.getone(30) is not None
            await consumer.commit()
            committed = await consumer.committed(TopicPartition(topic, 0))
            assert committed is not None
            assert committed.offset == 1
            ensemble.reset()  # it authenticates again
            assert await consumer.getone(30) is not None
            znodes = await asyncio.to_thread(contents, secured, f"/allocator/{group}")
            assert len(znodes) > 5
            objects = [each for each in gc.get_objects() if str(type(each).__module__).startswith("allocator.")]
            return "\n".join([*znodes, *map(repr, objects), repr(vars(consumer))])


def contents(secured: Secured, path: str) -> list[str]:
    """Returns the names, data (raw and inflated) and ACLs of all znodes below `path`."""
    zk = KazooClient(secured.cluster.zookeeper, auth_data=DIGEST_OPTIONS["auth_data"])
    zk.start(20)
    found = []

    def walk(path: str) -> None:
        data = zk.get(path)[0]
        found.append(f"{path} {data!r} {zk.get_acls(path)!r}")
        if data[:1] == b"x":
            found.append(repr(zlib.decompress(data)))
        for name in zk.get_children(path):
            walk(f"{path}/{name}")

    walk(path)
    zk.stop()
    zk.close()
    return found


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        *(("SSL", ""), ("SASL_SSL", "PLAIN"), ("SASL_PLAINTEXT", "SCRAM-SHA-256")),
        *(pytest.param("SASL_SSL", f"SCRAM-SHA-{bits}", marks=pytest.mark.long) for bits in (256, 512)),
    ],
)
async def test_a_member_works_with_each_kind_of_credentials_and_shows_no_secret(
    secured: Secured, topic_factory: Topics, group: str, everything: Everything, listener: str, mechanism: str
) -> None:
    topic = topic_factory(1, cluster=secured.cluster)
    await asyncio.to_thread(secured.cluster.produce, topic, [b"1", b"2"])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        objects = await session(secured, topic, group, listener, mechanism)
    assert not secrets_in(objects)
    assert not secrets_in("\n".join(map(str, warned)))
    logged = "\n".join(everything.lines)
    loggers = {line.split(".")[0].split()[0] for line in everything.lines}
    assert {"kazoo", "allocator"} <= loggers, "nothing was logged, so nothing was shown"
    for chatty in ("kazoo.client DEBUG", "allocator.core.client.connection DEBUG"):
        assert any(line.startswith(chatty) for line in everything.lines), chatty
    assert not secrets_in(logged), [line[:300] for line in everything.lines if secrets_in(line)]


async def test_a_failing_member_shows_no_secret(secured: Secured, everything: Everything) -> None:
    errors = []
    for change, where in (
        ({"sasl_plain_username": "nobody"}, "security"),
        ({"ssl_cafile": None}, "security"),
        ({"sasl_plain_pasword": PASSWORDS["PLAIN"]}, "security"),
        ({"ca": "/nowhere"}, "zookeeper_options"),
        ({"keyfile": str(secured.certificates.ca)}, "zookeeper_options"),
        ({"auth_data": [("digest", DIGEST)]}, "zookeeper_options"),  # no user: kazoo or the server refuses it
        ({"auth_dta": [("digest", DIGEST)]}, "zookeeper_options"),
        ({"keyfile_pasword": KEY_PASSWORD}, "zookeeper_options"),
    ):
        settings: dict[str, Any] = {
            "brokers": secured.brokers("SASL_SSL"),
            "zookeeper": secured.zookeeper,
            "security": secured.kafka("SASL_SSL"),
            "zookeeper_options": {**secured.zookeeper_options(), **DIGEST_OPTIONS},
        }
        settings[where] = {**settings[where], **change}
        try:
            async with Consumer("t", **joined(group="g", connect_timeout_s=2, **settings)):
                pass
        except AllocatorError as error:
            errors.append("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    assert len(errors) >= 7
    assert not secrets_in("\n".join(errors)), [error[-500:] for error in errors if secrets_in(error)]
    assert not secrets_in("\n".join(everything.lines)), [line[:300] for line in everything.lines if secrets_in(line)]


@pytest.mark.parametrize(
    "make",
    [
        lambda secrets: MembershipConfig.of(ZooKeeper(**secrets), group="g", client_id="c", topics=("t",)),
        lambda secrets: ConsumerGroupConfig(brokers="h:1", group="g", topics=("t",), zookeeper="h:2", **secrets),
        lambda secrets: OffsetStore(brokers="h:1", group="g", **secrets),
        lambda secrets: Access("h:2", **secrets),
    ],
    ids=["MembershipConfig", "ConsumerGroupConfig", "OffsetStore", "Access"],
)
def test_the_repr_of_settings_shows_no_secret(make: Callable[[dict[str, Any]], object]) -> None:
    """Errors and debuggers show them with `repr`."""
    settings = make({"zookeeper_options": {"auth_data": [("digest", "u:s3cret")]}})
    assert "s3cret" not in repr(settings) + str(settings)
    assert getattr(settings, "options", settings).zookeeper_options


@pytest.mark.parametrize("password", ["hush", "hush,hush", "hush/hush", "hush:hush", "hush@hush"])
@pytest.mark.parametrize("several", [False, True])
def test_an_error_about_an_address_shows_no_password(password: str, several: bool, tmp_path: Path) -> None:
    """An address has no password, but a user may take it for a URL."""
    file = tmp_path / "allocator.toml"
    text = '[kafka]\nbrokers = [{}]\n[group]\nname = "g"\ntopics = ["t"]\n[zookeeper]\nhosts = {}\n'

    def load_with(brokers: str, hosts: str) -> None:
        file.write_text(text.format(json.dumps(brokers), json.dumps(hosts)))
        load(file, {})

    address = f"user:{password}@h:1" + (",h2:1" if several else "")
    for make in (
        lambda: Consumer("t", brokers=address, group="g", membership="kafka"),
        lambda: Consumer("t", brokers=[address], group="g", membership="kafka"),
        lambda: Consumer("t", brokers="h:1", group="g", zookeeper=address),
        lambda: KafkaClient(address),
        lambda: KafkaClient([address]),
        lambda: ZooKeeperClient(address),
        lambda: load_with(address, "h:2181"),
        lambda: load_with("h:1", address),
    ):
        with pytest.raises(ConfigError) as error:
            make()
        assert "hush" not in "".join(traceback.format_exception(ConfigError, error.value, None))
        assert "host:port" in str(error.value)


def test_other_wrong_addresses_are_quoted() -> None:
    with pytest.raises(ConfigError, match="'h:port' is not an address"):
        KafkaClient("h1:1,h:port")
