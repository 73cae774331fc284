"""Recognisable secrets are found in no log line at any level, in no error and in no znode."""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from joining import joined
from kazoo.client import KazooClient
from secrets_and_doors import DIGEST, DIGEST_OPTIONS, KEY_PASSWORD, PASSWORDS, SECRETS, Secured

from allocator import AllocatorError, Consumer, ZooKeeper
from allocator.cli.access import Access
from allocator.compat.group_config import ConsumerGroupConfig
from allocator.core.consumer.membership_config import MembershipConfig
from allocator.daemon.config import load
from allocator.migrate.storage import OffsetStore
from allocator.testing import FaultProxy

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


def shown(text: str) -> list[str]:
    # in plain text or in hexadecimal
    return [secret for secret in SECRETS if secret in text or secret.encode().hex() in text]


async def session(secured: Secured, topic: str, group: str, mechanism: str) -> str:
    """A member joins, reads, commits, loses its connections and leaves. Returns the `repr` of all objects."""
    with FaultProxy(int(secured.zookeeper.rpartition(":")[2])) as ensemble:
        return await session_through(ensemble, secured, topic, group, mechanism)


async def session_through(ensemble: FaultProxy, secured: Secured, topic: str, group: str, mechanism: str) -> str:
    consumer = Consumer(
        topic,
        brokers=secured.brokers("SASL_SSL"),
        zookeeper=ensemble.address,
        group=group,
        security=secured.kafka("SASL_SSL", mechanism),
        membership=ZooKeeper(
            zookeeper_options={**secured.zookeeper_options(), **DIGEST_OPTIONS}, session_timeout_s=15.0
        ),
    )
    async with consumer:
        assert await consumer.getone(30) is not None
        await consumer.commit()
        ensemble.reset()  # it authenticates again
        assert await consumer.getone(30) is not None
        znodes = await asyncio.to_thread(contents, secured, f"/allocator/{group}")
        assert len(znodes) > 5
        ours = [each for each in gc.get_objects() if str(type(each).__module__).startswith("allocator.")]
        return "\n".join([*znodes, *map(repr, ours), repr(vars(consumer))])


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


@pytest.mark.parametrize("mechanism", PASSWORDS)
async def test_not_by_a_member_that_works(
    secured: Secured, topic_factory: Topics, group: str, everything: Everything, mechanism: str
) -> None:
    topic = topic_factory(1, cluster=secured.cluster)
    await asyncio.to_thread(secured.cluster.produce, topic, [b"1", b"2"])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        said = await session(secured, topic, group, mechanism)
    assert not shown(said)
    assert not shown("\n".join(map(str, warned)))
    logged = "\n".join(everything.lines)
    loggers = {line.split(".")[0].split()[0] for line in everything.lines}
    assert {"kazoo", "allocator"} <= loggers, "nothing was logged, so nothing was shown"
    for chatty in ("kazoo.client DEBUG", "allocator.core.client.connection DEBUG"):
        assert any(line.startswith(chatty) for line in everything.lines), chatty
    assert not shown(logged), [line[:300] for line in everything.lines if shown(line)]
    print(f"{len(everything.lines)} log lines, none with a secret")


async def test_not_by_a_member_that_fails(secured: Secured, everything: Everything) -> None:
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
        settings = {
            "security": secured.kafka("SASL_SSL"),
            "zookeeper_options": {**secured.zookeeper_options(), **DIGEST_OPTIONS},
        }
        settings[where] = {**settings[where], **change}
        try:
            async with Consumer(
                "t",
                **joined(
                    brokers=secured.brokers("SASL_SSL"),
                    zookeeper=secured.zookeeper,
                    group="g",
                    connect_timeout_s=2,
                    **settings,
                ),
            ):
                pass
        except AllocatorError as error:
            errors.append("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    assert len(errors) >= 7
    assert not shown("\n".join(errors)), [error[-500:] for error in errors if shown(error)]
    assert not shown("\n".join(everything.lines)), [line[:300] for line in everything.lines if shown(line)]


def test_not_by_settings_that_are_wrong(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'''
[kafka]
brokers = "h:9092"
security_protocol = "SASL_SLL"
sasl_mechanism = "PLAIN"
sasl_plain_username = "alice"
sasl_plain_password = "{PASSWORDS["PLAIN"]}"
ssl_password = ["{KEY_PASSWORD}"]
[zookeeper]
hosts = "h:2181"
digest_password = "{DIGEST}"
''')
    with pytest.raises(AllocatorError) as caught:
        load(file, {"ALLOCATOR_KAFKA_SSL_PASSWORD": "", "ALLOCATOR_KAFKA_SASL_PLAIN_PASSWORD": PASSWORDS["PLAIN"]})
    assert "security_protocol" in str(caught.value)
    assert not shown(str(caught.value))


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
def test_not_by_what_shows_settings(make: Callable[[dict[str, Any]], object]) -> None:
    """Errors and debuggers show them with `repr`."""
    made = make({"zookeeper_options": {"auth_data": [("digest", "u:s3cret")]}})
    assert "s3cret" not in repr(made) + str(made)
    assert getattr(made, "options", made).zookeeper_options
