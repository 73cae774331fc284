"""The settings of `allocator run`, one TOML file.

Each may also come from the environment as ALLOCATOR_<SECTION>_<KEY>, which wins over the file (an empty variable
counts as not set; lists are written with commas). Passwords belong there. The comment of a setting says what more
and what less of it does.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from allocator.consumer.membership_config import MEMBERSHIPS, ON_ZOOKEEPER, PLACES, PROTOCOLS
from allocator.consumer.settings import MASK, Flag, Number, SettingsReader, Text, Texts, Whole, setting
from allocator.errors import ConfigError, MissingExtra
from allocator.groups.patterns import check_pattern
from allocator.groups.zookeeper.znodes import GROUP_NAME, Paths
from allocator.offsets.storage import STORAGES

__all__ = [
    "PREFIX",
    "CommitSettings",
    "Config",
    "ConsumeSettings",
    "GroupSection",
    "HandlerSettings",
    "KafkaSection",
    "LogSettings",
    "WebSettings",
    "ZooKeeperSettings",
    "check_together",
    "load",
]

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


PREFIX = "ALLOCATOR"


def _address(text: str) -> str | None:
    match = re.fullmatch(r"(?:\[[0-9a-fA-F:.]+\]|[^\s\x00-\x1f:/\[\],]+)(?::(\d{1,5}))?", text)
    if not match or (match.group(1) is not None and not 0 < int(match.group(1)) < 65536):
        return f"{text!r} is not host:port"
    return None


def _ensemble(text: str) -> str | None:
    servers, slash, chroot = text.partition("/")
    if slash and not chroot.strip("/"):
        return "a chroot follows the '/'"
    return next(filter(None, map(_address, servers.split(","))), None)


def _topic(text: str) -> str | None:
    if re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", text) and text not in (".", ".."):
        return None
    return f"{text!r} is no topic name (1 to 249 of a-z A-Z 0-9 . _ -)"


def _pattern(text: str) -> str | None:
    try:
        re.compile(text)
    except re.error as error:
        return str(error)
    return None


def _group(text: str) -> str | None:
    return (
        None if GROUP_NAME.match(text) and text not in (".", "..") else "no '/', no control character, not '.' or '..'"
    )


def _readable(text: str) -> str | None:
    try:
        with open(text, "rb"):
            return None
    except OSError as error:
        return str(error.strerror)


def _target(text: str) -> str | None:
    return None if re.fullmatch(r"[\w.]+:[\w.]+", text) else "a colon stands between the module and the function"


class _Reset:
    """Where to begin: a word, or a time."""

    allowed = '"earliest" or "latest" or "none" or a time (milliseconds since the epoch)'

    def read(self, value: Any) -> str | int:
        if isinstance(value, int) and not isinstance(value, bool):
            return Whole(high=2**62).read(value)
        return Text(("earliest", "latest", "none")).read(value)

    def parse(self, text: str) -> str | int:
        return int(text) if text.isdigit() else text


@dataclass(frozen=True)
class KafkaSection:
    """[kafka]: the brokers and how they are spoken to; security settings have kafka-python's names."""

    # some brokers of the cluster, the others are learnt from them; more: starts although some are down
    brokers: tuple[str, ...] = setting(Texts('a list of "host:port"', _address))
    # "PLAINTEXT", the default, sends everything readable; the others need the settings below
    security_protocol: str = setting(Text(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")), "PLAINTEXT")
    sasl_mechanism: str | None = setting(Text(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")), None)
    sasl_plain_username: str | None = setting(Text(), None)
    sasl_plain_password: str | None = setting(Text(), None, secret=True)
    sasl_kerberos_service_name: str | None = setting(Text(), None)
    sasl_kerberos_domain_name: str | None = setting(Text(), None)
    ssl_cafile: str | None = setting(Text(check=_readable, what="a readable file"), None)
    ssl_certfile: str | None = setting(Text(check=_readable, what="a readable file"), None)
    ssl_keyfile: str | None = setting(Text(check=_readable, what="a readable file"), None)
    ssl_crlfile: str | None = setting(Text(check=_readable, what="a readable file"), None)
    ssl_password: str | None = setting(Text(), None, secret=True)
    # default true; false accepts any host that shows a certificate of the CA
    ssl_check_hostname: bool | None = setting(Flag(), None)

    def security(self) -> dict[str, Any]:
        """The settings above that are used, as kafka-python names them."""
        used = {key: value for key, value in _values(self).items() if key != "brokers" and value is not None}
        return {} if used == {"security_protocol": "PLAINTEXT"} else used


@dataclass(frozen=True)
class ZooKeeperSettings:
    """[zookeeper]: who is alive and who owns what."""

    # the ensemble, with an optional chroot at its end; needed with group.membership = "zookeeper"
    hosts: str | None = setting(Text(check=_ensemble, what='"host:port,host:port/chroot"'), None)
    # znode under which the groups stand; members with another root never meet
    root: str = setting(Text(what="an absolute path"), "/allocator")
    # seconds, default 10; more: a crashed member's partitions wait longer; less: a pause of this process (or of
    # ZooKeeper) ends its ownership. The ensemble has the last word, by its own limits
    session_timeout_s: float = setting(Number(1, 3600), 10.0)
    digest_username: str | None = setting(Text(), None)
    digest_password: str | None = setting(Text(), None, secret=True)
    sasl_mechanism: str | None = setting(Text(("DIGEST-MD5", "GSSAPI")), None)
    sasl_username: str | None = setting(Text(), None)
    sasl_password: str | None = setting(Text(), None, secret=True)
    # default false; true needs an ensemble that listens with TLS
    tls: bool = setting(Flag(), False)
    ca: str | None = setting(Text(check=_readable, what="a readable file"), None)
    certfile: str | None = setting(Text(check=_readable, what="a readable file"), None)
    keyfile: str | None = setting(Text(check=_readable, what="a readable file"), None)
    keyfile_password: str | None = setting(Text(), None, secret=True)
    # default true; false trusts whoever answers
    verify_certs: bool | None = setting(Flag(), None)
    check_hostname: bool | None = setting(Flag(), None)

    def options(self) -> dict[str, Any]:
        """Authentication and TLS, as kazoo names them."""
        names = ("ca", "certfile", "keyfile", "keyfile_password", "verify_certs", "check_hostname")
        options: dict[str, Any] = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.tls:
            options["use_ssl"] = True
        if self.digest_username is not None:
            options["auth_data"] = [("digest", f"{self.digest_username}:{self.digest_password}")]
        if self.sasl_mechanism is not None:
            sasl = {"mechanism": self.sasl_mechanism, "username": self.sasl_username, "password": self.sasl_password}
            options["sasl_options"] = {key: value for key, value in sasl.items() if value is not None}
        return options


@dataclass(frozen=True)
class GroupSection:
    """[group]: which group this is a member of, and for what."""

    # the name under which members share partitions and offsets are committed
    name: str = setting(Text(check=_group, what="a name of 1 to 249 characters"))
    # either these topics
    topics: tuple[str, ...] | None = setting(Texts("a list of topics", _topic), None)
    # or those whose name begins with what this regular expression matches, future ones too; "zookeeper" needs
    # zk-partition-allocator[patterns] for it, and takes no lookaround
    pattern: str | None = setting(Text(check=_pattern, what="a regular expression"), None)
    # allocator functions this member can work with, the preferred first: a name or "package.module:function";
    # default "naive"
    assignor: tuple[str, ...] | None = setting(Texts("a list of allocator functions"), None)
    # shown where members are listed, default: made from host and process; equal ones are allowed
    client_id: str | None = setting(Text(), None)
    # relative capacity, for allocator functions that heed it
    weight: float = setting(Number(0, 1e6, above=True, unit="relative capacity"), 1.0)
    # where this process runs, as the brokers name their racks. Leave it out in a group (membership = "kafka") that has
    # members of kafka-go: they cannot read what a member with a rack says
    rack: str | None = setting(Text(), None)
    # seconds, default 30: how long the start waits for Kafka and ZooKeeper; more: waits for a cluster that is
    # coming up; less: whatever supervises the daemon learns sooner that it cannot start
    connect_timeout_s: float = setting(Number(0.1, 86400), 30.0)
    # who says which partitions are ours. "zookeeper": this project's own protocol, on any cluster; "kafka": Kafka's
    # group protocol (brokers from 0.9), without ZooKeeper, shared with other clients if the allocator function is one
    # that they have; "fixed": all partitions of the topics, whoever else reads them. Offsets stay where they are.
    # "kiel": a group with members of kiel 0.9.3, until it is given to "zookeeper" by `allocator group adopt`;
    # "consumers", "pykafka": one with members of Kafka's own client of 0.8, or of pykafka's BalancedConsumer
    membership: str = setting(Text(MEMBERSHIPS), "zookeeper")
    # where committed offsets are: "kafka", "zookeeper" (as before 0.8.2), or "both"; default: where the other members
    # have them, and "kafka" among ours
    offsets: str | None = setting(Text(STORAGES), None)
    # seconds, default 3, for "kiel": how long a partition that comes from a member of kiel's, who do not say what they
    # hold, is left alone; more: it stands still for longer; less: what that member commits late is handled twice
    settle_s: float = setting(Number(0, 3600), 3.0)
    # the rest is for "kafka". "classic", or "consumer" (KIP-848, brokers from 4.0): then the broker assigns, "assignor"
    # names one of its own, and session timeout and heartbeat interval are the broker's to set
    group_protocol: str = setting(Text(PROTOCOLS), "classic")
    # seconds, default 10, and brokers take no less than 6 unless told to; more: a crashed
    # member's partitions wait longer; less: a pause of this process ends its ownership
    session_timeout_s: float = setting(Number(0.1, 3600), 10.0)
    # seconds, default 3, at most half of the session timeout; more: a rebalance is noticed later
    heartbeat_interval_s: float = setting(Number(0.01, 3600), 3.0)
    # seconds, default 60: how long a rebalance waits for a member that drains and commits; more: one that hangs
    # holds the group up; less: a slow one loses what it holds. Before 0.10.1 the session timeout stands for it
    rebalance_timeout_s: float = setting(Number(1, 86400), 60.0)
    # a name of this process among all of the group, kept over restarts (KIP-345, brokers from 2.3): its partitions
    # wait for it up to the session timeout instead of moving twice
    instance_id: str | None = setting(Text(check=_topic, what="a name (a-z A-Z 0-9 . _ -)"), None)


@dataclass(frozen=True)
class ConsumeSettings:
    """[consume]: how records are fetched."""

    # where to begin with nothing committed, or out of range: "earliest" (default) may repeat, "latest" may skip,
    # a time begins at the first record not older, "none" stops with an error
    auto_offset_reset: str | int = setting(_Reset(), "earliest")
    # "read_uncommitted" (default) also gives records of transactions that are open or were aborted
    isolation_level: str = setting(Text(("read_uncommitted", "read_committed")), "read_uncommitted")
    # seconds, default 0.5: how long a broker may wait for min_bytes; more: fewer requests; less: more of them
    max_wait_s: float = setting(Number(0, 300), 0.5)
    # bytes, default 1: more: larger fetches, each up to max_wait_s late
    min_bytes: int = setting(Whole(1, unit="bytes"), 1)
    # bytes of one response, default 50 MiB
    max_bytes: int = setting(Whole(1, unit="bytes"), 52_428_800)
    # bytes of one partition in a response, default 1 MiB; less: smaller batches; brokers before 0.10.1 cannot
    # send a record that is larger
    max_partition_bytes: int = setting(Whole(1, unit="bytes"), 1_048_576)
    # bytes fetched ahead of the handler in all, default 32 MiB; more: memory; less: the handler may wait
    prefetch_bytes: int = setting(Whole(1, unit="bytes"), 33_554_432)


@dataclass(frozen=True)
class HandlerSettings:
    """[handler]: what is done with the records."""

    # called for every record, in order within a partition; coroutine or plain (plain ones run in threads)
    target: str = setting(Text(check=_target, what='"package.module:function"'))
    # "record": handler(record); "batch": handler(batch), which succeeds or fails as a whole
    mode: str = setting(Text(("record", "batch")), "record")
    # partitions handled at the same time, default 8; more: more threads or open calls; 1: one record at a time
    concurrency: int = setting(Whole(1, 1024), 8)
    # batches queued for a partition before it is paused, default 2; more: memory; 1: the handler may wait
    queue_batches: int = setting(Whole(1, 1000), 2)
    # further attempts after the first one raised, default 5; 0: none
    retries: int = setting(Whole(0, 1_000_000), 5)
    # seconds before the first retry, doubled for each further one up to the maximum, each shortened at random by
    # up to half so that members do not retry in step
    retry_backoff_s: float = setting(Number(0, 86400), 0.5)
    retry_backoff_max_s: float = setting(Number(0, 86400), 30.0)
    # where records go that failed for good; not set: the daemon stops there, nothing is skipped
    dead_letter_topic: str | None = setting(Text(check=_topic, what="a topic"), None)
    # seconds, default 30, for calls in progress when a partition is taken away or the daemon stops; more: others
    # wait longer for the partition; less: a call may be cut off, and its record handled again by the next owner
    drain_timeout_s: float = setting(Number(0, 86400), 30.0)


@dataclass(frozen=True)
class CommitSettings:
    """[commit]: when positions are committed, besides at every revocation and at the end."""

    # seconds, default 5; more: more records repeated after a crash; less: more requests
    interval_s: float = setting(Number(0.01, 86400), 5.0)


@dataclass(frozen=True)
class LogSettings:
    """[log]: to standard error."""

    level: str = setting(Text(("debug", "info", "warning", "error")), "info")
    # "json": an object a line; "text": for people
    format: str = setting(Text(("json", "text")), "json")


@dataclass(frozen=True)
class WebSettings:
    """[web]: metrics for Prometheus, health, and a status page of the group. Needs `zk-partition-allocator[web]`."""

    # not set: no server. 0: any port that is free, named in the log
    port: int | None = setting(Whole(0, 65535), None)
    # address to listen on, default 127.0.0.1: this machine alone; "0.0.0.0" or "::" lets others read all it shows
    host: str = setting(Text(), "127.0.0.1")
    # names under which browsers call it, besides localhost and addresses; any other name is refused, since somebody's
    # page could make a name of its own lead here
    allow_hosts: tuple[str, ...] | None = setting(Texts("a list of host names"), None)
    # lets whoever has it force a rebalance or reset offsets; not set: nothing can be changed
    token: str | None = setting(Text(), None, secret=True)


SECTIONS: Mapping[str, type[Any]] = {
    "kafka": KafkaSection,
    "zookeeper": ZooKeeperSettings,
    "group": GroupSection,
    "consume": ConsumeSettings,
    "handler": HandlerSettings,
    "commit": CommitSettings,
    "log": LogSettings,
    "web": WebSettings,
}


@dataclass(frozen=True)
class Config:
    """All settings, checked."""

    kafka: KafkaSection
    zookeeper: ZooKeeperSettings
    group: GroupSection
    consume: ConsumeSettings
    handler: HandlerSettings
    commit: CommitSettings
    log: LogSettings
    web: WebSettings

    def shown(self) -> dict[str, dict[str, Any]]:
        """Every setting with its value, for people: secrets are masked, what is not used is left out."""
        return {
            name: {
                field.name: MASK if field.metadata["secret"] else value
                for field in dataclasses.fields(section)
                if (value := getattr(getattr(self, name), field.name)) is not None
            }
            for name, section in SECTIONS.items()
        }

    def consumer_options(self) -> dict[str, Any]:
        """Arguments for `Consumer`, besides the topics: no auto-commit, since the daemon commits what is done."""
        assignors = self.group.assignor
        owner: Union[GroupSection, ZooKeeperSettings] = (
            self.zookeeper if self.group.membership in ON_ZOOKEEPER else self.group
        )
        return {
            "brokers": ",".join(self.kafka.brokers),
            "security": self.kafka.security() or None,
            "group": self.group.name,
            "zookeeper": self.zookeeper.hosts,
            "root": self.zookeeper.root,
            "session_timeout_s": owner.session_timeout_s,
            "heartbeat_interval_s": self.group.heartbeat_interval_s,
            "group_protocol": self.group.group_protocol,
            "rebalance_timeout_s": self.group.rebalance_timeout_s,
            "instance_id": self.group.instance_id,
            "offsets": self.group.offsets,
            "settle_s": self.group.settle_s,
            "zookeeper_options": self.zookeeper.options() or None,
            "pattern": self.group.pattern,
            "assignor": assignors[0] if assignors is not None and len(assignors) == 1 else assignors,
            "client_id": self.group.client_id,
            "weight": self.group.weight,
            "rack": self.group.rack,
            "membership": self.group.membership,
            "connect_timeout_s": self.group.connect_timeout_s,
            "auto_commit_interval_s": None,
            **_values(self.consume),
        }


def load(path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Config:
    """Read and check a file of settings, with what the environment overrides.

    Raises ConfigError that lists every fault: where it stands, the value, what is allowed.
    """
    source = os.fspath(path)
    if not source:
        raise ConfigError("the name of the settings file is empty")
    try:
        document = tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: is not TOML: {error}") from error
    reader = SettingsReader(SECTIONS, source, PREFIX)
    config = Config(**reader.read(document, os.environ if environ is None else environ))
    check_together(config, reader)
    reader.faults.raise_if_any()
    return config


def _values(section: Any) -> dict[str, Any]:
    return {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}


# -- config_checks ----------
# Settings of `allocator run` that are fine one by one and contradict each other.


def check_together(config: Config, reader: SettingsReader) -> None:
    """Settings that are fine one by one and contradict each other."""
    kafka, zookeeper, group = config.kafka, config.zookeeper, config.group
    consume, handler = config.consume, config.handler
    topics_keys = ["group.topics", "group.pattern"]
    if (group.topics is None) == (group.pattern is None):
        reader.fault(topics_keys, "set exactly one of them")
    if group.membership in ON_ZOOKEEPER and zookeeper.hosts is None:
        reader.fault(["zookeeper.hosts", "group.membership"], "this membership needs it")
    try:
        check_pattern(group.pattern, group.membership)
    except (ConfigError, MissingExtra) as error:
        reader.fault(["group.pattern", "group.membership"], str(error))
    if group.offsets is not None and group.offsets not in PLACES[group.membership]:
        reader.fault(
            ["group.offsets", "group.membership"], f"they are in one of: {', '.join(PLACES[group.membership])}"
        )
    if group.membership == "kafka" and 2 * group.heartbeat_interval_s > group.session_timeout_s:
        keys = ["group.heartbeat_interval_s", "group.session_timeout_s"]
        reader.fault(keys, "the first may be half of the second, or one lost heartbeat costs the membership")
    if handler.dead_letter_topic is not None:
        if handler.dead_letter_topic in (group.topics or ()):
            reader.fault(["handler.dead_letter_topic", "group.topics"], "dead letters would be consumed again")
        if group.pattern is not None and re.match(group.pattern, handler.dead_letter_topic):
            reader.fault(["handler.dead_letter_topic", "group.pattern"], "dead letters would be consumed again")
    if handler.retry_backoff_s > handler.retry_backoff_max_s:
        reader.fault(["handler.retry_backoff_s", "handler.retry_backoff_max_s"], "the first is more than the maximum")
    if consume.min_bytes > consume.max_bytes:
        reader.fault(["consume.min_bytes", "consume.max_bytes"], "the first is more than the second")
    if consume.max_partition_bytes > consume.max_bytes:
        reader.fault(["consume.max_partition_bytes", "consume.max_bytes"], "the first is more than the second")
    if consume.max_partition_bytes > consume.prefetch_bytes:
        reader.fault(["consume.max_partition_bytes", "consume.prefetch_bytes"], "the first is more than the second")
    _check_kafka_security(kafka, reader)
    _check_zookeeper_security(zookeeper, reader)
    if "zookeeper.root" not in reader.faults.keys:
        try:
            Paths(zookeeper.root, "group")
        except ConfigError as error:
            reader.fault(["zookeeper.root"], str(error))


def _check_kafka_security(kafka: KafkaSection, reader: SettingsReader) -> None:
    protocol = kafka.security_protocol
    for key, value in dataclasses.asdict(kafka).items():
        # half a configuration would connect in the clear without a word
        needed = {"sasl": "SASL_", "ssl_": "SSL"}.get(key[:4])
        if value is not None and needed and needed not in protocol:
            reader.fault([f"kafka.{key}", "kafka.security_protocol"], "has no effect with this protocol")
    if protocol.startswith("SASL_"):
        if kafka.sasl_mechanism is None:
            reader.fault(["kafka.security_protocol", "kafka.sasl_mechanism"], "a mechanism is needed")
        elif kafka.sasl_mechanism != "GSSAPI":
            for key in ("sasl_plain_username", "sasl_plain_password"):
                if getattr(kafka, key) is None:
                    reader.fault(["kafka.sasl_mechanism", f"kafka.{key}"], "the mechanism needs it")
    if (kafka.ssl_keyfile is not None or kafka.ssl_password is not None) and kafka.ssl_certfile is None:
        given = "ssl_keyfile" if kafka.ssl_keyfile is not None else "ssl_password"
        reader.fault([f"kafka.{given}", "kafka.ssl_certfile"], "it belongs to a certificate")


def _check_zookeeper_security(zookeeper: ZooKeeperSettings, reader: SettingsReader) -> None:
    for first, second in (("digest_username", "digest_password"), ("digest_password", "digest_username")):
        if getattr(zookeeper, first) is not None and getattr(zookeeper, second) is None:
            reader.fault([f"zookeeper.{first}", f"zookeeper.{second}"], "each needs the other")
    for key in ("sasl_username", "sasl_password"):
        if getattr(zookeeper, key) is not None and zookeeper.sasl_mechanism != "DIGEST-MD5":
            reader.fault([f"zookeeper.{key}", "zookeeper.sasl_mechanism"], 'it belongs to "DIGEST-MD5"')
        if getattr(zookeeper, key) is None and zookeeper.sasl_mechanism == "DIGEST-MD5":
            reader.fault(["zookeeper.sasl_mechanism", f"zookeeper.{key}"], "the mechanism needs it")
    for key in ("ca", "certfile", "keyfile", "keyfile_password", "verify_certs", "check_hostname"):
        if getattr(zookeeper, key) is not None and not zookeeper.tls:
            reader.fault([f"zookeeper.{key}", "zookeeper.tls"], "has no effect without TLS")
