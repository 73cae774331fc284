"""Declares, loads and checks the settings of `allocator run`, which are in one TOML file.

An environment variable ALLOCATOR_<SECTION>_<KEY> overrides the file (an empty variable counts as not set; lists are
separated by commas). Put passwords there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_type_hints

from allocator.core.client import mechanism_faults
from allocator.core.consumer import MembershipConfig, MembershipOptions, membership_from
from allocator.core.settings import Flag, Text, Texts, Whole, setting, shared
from allocator.daemon.settings_reader import SettingsReader
from allocator.errors import ConfigError, MissingExtra
from allocator.handlers import HANDLING, Handling, contradictions
from allocator.handlers.schemas import Formats, Masks, Registry
from allocator.types import MembershipName

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


PREFIX: Final = "ALLOCATOR"
TARGET_PREFIX: Final = "ALLOCATOR_TO"  # variables for the target cluster, in commands with two clusters
_TLS: Final = ("ca", "certfile", "keyfile", "keyfile_password", "verify_certs", "check_hostname")


def _readable(text: str) -> None:
    try:
        with open(text, "rb"):
            return
    except OSError as error:
        raise ValueError(str(error.strerror)) from None


def _check_target(text: str) -> None:
    if not re.fullmatch(r"[\w.]+:[\w.]+", text):
        raise ValueError("write a colon between the module and the function")


_FILE: Final = Text(check=_readable, what="a readable file")


@dataclass(frozen=True)
class KafkaSection:
    """[kafka]: the brokers and how to connect to them. Security settings have kafka-python's names."""

    brokers: tuple[str, ...] = shared("brokers")
    security_protocol: str = setting(
        Text(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
        "PLAINTEXT",
        "`PLAINTEXT` does not encrypt. The other values need the settings below.",
    )
    sasl_mechanism: str | None = setting(
        Text(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM")),
        None,
        "The SASL mechanism. `AWS_MSK_IAM` needs `zk-partition-allocator[msk]`.",
    )
    sasl_plain_username: str | None = setting(Text(), None, "The user name of PLAIN and SCRAM.")
    sasl_plain_password: str | None = setting(Text(), None, "The password of PLAIN and SCRAM.", secret=True)
    sasl_kerberos_service_name: str | None = setting(Text(), None, "The service name of GSSAPI; `kafka` if not set.")
    sasl_kerberos_domain_name: str | None = setting(Text(), None, "The domain of GSSAPI; the broker's host if not set.")
    sasl_oauth_token_provider: str | None = setting(
        Text(check=_check_target, what='"package.module:function"'),
        None,
        "For OAUTHBEARER: a function without arguments that returns a token provider, an object whose method `token()` "
        "returns a token. The function is called once in a process. `token()` runs in a thread.",
    )
    sasl_oauth_token_endpoint: str | None = setting(
        Text(what="an https URL"),
        None,
        "For OAUTHBEARER, instead of a provider: the URL that issues tokens to this client (client credentials grant, "
        "RFC 6749). `http` is allowed only for localhost.",
        url=True,
    )
    sasl_oauth_client_id: str | None = setting(Text(), None, "The name of this client at the token endpoint.")
    sasl_oauth_client_secret: str | None = setting(
        Text(), None, "The secret of this client at the token endpoint.", secret=True
    )
    sasl_oauth_scope: str | None = setting(Text(), None, "The scope to request, if the token endpoint needs one.")
    ssl_cafile: str | None = setting(_FILE, None, "CA certificates (PEM) that sign the brokers' certificates.")
    ssl_certfile: str | None = setting(_FILE, None, "The certificate (PEM) of this client.")
    ssl_keyfile: str | None = setting(_FILE, None, "The private key of `ssl_certfile`, if it is in another file.")
    ssl_crlfile: str | None = setting(_FILE, None, "A list of revoked certificates (PEM).")
    ssl_password: str | None = setting(Text(), None, "The password of the private key.", secret=True)
    ssl_check_hostname: bool | None = setting(
        Flag(), None, "Default true. false: any host with a certificate of the CA is accepted."
    )

    def security(self) -> dict[str, Any]:
        """Returns the security settings that are set, under kafka-python's names."""
        used = {key: value for key, value in vars(self).items() if key != "brokers" and value is not None}
        return {} if used == {"security_protocol": "PLAINTEXT"} else used


@dataclass(frozen=True)
class ZooKeeperSection:
    """[zookeeper]: the ensemble that stores members and partition owners."""

    hosts: str | None = shared("zookeeper")
    root: str = shared("root")
    session_timeout_s: float = shared("session_timeout_s")
    digest_username: str | None = setting(Text(), None, "The user name of digest authentication.")
    digest_password: str | None = setting(Text(), None, "The password of digest authentication.", secret=True)
    sasl_mechanism: str | None = setting(Text(("DIGEST-MD5", "GSSAPI")), None, "The SASL mechanism.")
    sasl_username: str | None = setting(Text(), None, "The user name of DIGEST-MD5.")
    sasl_password: str | None = setting(Text(), None, "The password of DIGEST-MD5.", secret=True)
    tls: bool = setting(Flag(), False, "Connects with TLS. The ensemble must support it.")
    ca: str | None = setting(_FILE, None, "CA certificates (PEM) that sign the servers' certificates.")
    certfile: str | None = setting(_FILE, None, "The certificate (PEM) of this client.")
    keyfile: str | None = setting(_FILE, None, "The private key of `certfile`.")
    keyfile_password: str | None = setting(Text(), None, "The password of the private key.", secret=True)
    verify_certs: bool | None = setting(Flag(), None, "Default true. false: any server is trusted.")
    check_hostname: bool | None = setting(
        Flag(), None, "Default true. false: any host with a certificate of the CA is accepted."
    )

    def options(self) -> dict[str, Any]:
        """Returns the settings for authentication and TLS, under kazoo's names."""
        options: dict[str, Any] = {name: getattr(self, name) for name in _TLS if getattr(self, name) is not None}
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
    """[group]: the group, its topics, and this member."""

    name: str = shared("group")
    topics: tuple[str, ...] | None = shared("topics")
    pattern: str | None = shared("pattern")
    assignor: tuple[str, ...] | None = shared("assignor")
    client_id: str | None = shared("client_id")
    weight: float = shared("weight")
    rack: str | None = shared("rack")
    connect_timeout_s: float = shared("connect_timeout_s")
    membership: MembershipName = shared("membership")
    offsets: str | None = shared("offsets")
    settle_s: float = shared("settle_s")
    group_protocol: str = shared("group_protocol")
    session_timeout_s: float = shared(
        "session_timeout_s", text="Used by membership `kafka`; memberships on ZooKeeper use that of `[zookeeper]`."
    )
    heartbeat_interval_s: float = shared("heartbeat_interval_s")
    rebalance_timeout_s: float = shared("rebalance_timeout_s")
    instance_id: str | None = shared("instance_id")
    restart_grace_s: float = shared("restart_grace_s")
    follow_load: str | None = shared("follow_load")
    load_tolerance: float = shared("load_tolerance")
    leave_on_stop: bool = setting(
        Flag(),
        False,
        "Other members get the partitions as soon as the daemon stops, although the group would reserve them for the "
        "next process of this `instance_id` (`restart_grace_s`; in a Kafka group, the session timeout). For a process "
        "that is taken out of service. false: a stop counts as a restart.",
    )


@dataclass(frozen=True)
class ConsumeSection:
    """[consume]: how the daemon fetches records."""

    auto_offset_reset: str | int = shared("auto_offset_reset")
    isolation_level: str = shared("isolation_level")
    max_wait_s: float = shared("max_wait_s")
    min_bytes: int = shared("min_bytes")
    latency_budget_s: float = shared("latency_budget_s")
    prefetch_bytes: int = shared("prefetch_bytes")


@dataclass(frozen=True)
class HandlerSection:
    """[handler]: how the daemon handles records."""

    target: str = setting(
        Text(check=_check_target, what='"package.module:function"'),
        dataclasses.MISSING,
        "The handler: called for every record, in the order of `ordering`. A coroutine function runs on the loop, a "
        "plain function in a thread.",
    )
    mode: str = setting(
        Text(("record", "batch")),
        "record",
        "`record`: calls handler(record). `batch`: calls handler(batch), which succeeds or fails as a whole.",
    )
    ordering: str = shared("ordering", table=HANDLING)
    concurrency: int = shared("concurrency", table=HANDLING)
    workers: str = shared("workers", table=HANDLING)
    in_hand_bytes: int = shared("in_hand_bytes", table=HANDLING)
    retries: int = shared("retries", table=HANDLING)
    retry_backoff_s: float = shared("retry_backoff_s", table=HANDLING)
    retry_backoff_max_s: float = shared("retry_backoff_max_s", table=HANDLING)
    retry_limit_s: float | None = shared("retry_limit_s", table=HANDLING)
    retry_on: tuple[str, ...] | None = shared("retry_on", table=HANDLING)
    dead_letter_on: tuple[str, ...] | None = shared("dead_letter_on", table=HANDLING)
    skip_on: tuple[str, ...] | None = shared("skip_on", table=HANDLING)
    stop_on: tuple[str, ...] | None = shared("stop_on", table=HANDLING)
    retry_topics: tuple[str, ...] | None = shared("retry_topics", table=HANDLING)
    create_retry_topics: bool = shared("create_retry_topics", table=HANDLING)
    dead_letter_topic: str | None = shared("dead_letter_topic", table=HANDLING)
    results: str = shared("results", table=HANDLING)
    sink: str | None = setting(
        Text(check=_check_target, what='"package.module:name"'),
        None,
        "A sink of `allocator.sinks` that the handler writes to. The group starts at its offsets.",
    )
    drain_timeout_s: float = shared("drain_timeout_s", table=HANDLING)


@dataclass(frozen=True)
class CommitSection:
    """[commit]: how often the daemon commits. It also commits at each revocation and at the end."""

    interval_s: float = shared("auto_commit_interval_s")


@dataclass(frozen=True)
class LogSection:
    """[log]: what the daemon logs to standard error."""

    level: str = setting(Text(("debug", "info", "warning", "error")), "info", "The lowest level that is logged.")
    format: str = setting(Text(("json", "text")), "json", "`json`: one JSON object per line. `text`: lines for people.")


def _check_host(text: str) -> None:
    text.encode("idna")  # a name lookup does the same; raises ValueError for an invalid name


@dataclass(frozen=True)
class WebSection:
    """[web]: Prometheus metrics, health checks, and a status page of the group. Needs `zk-partition-allocator[web]`."""

    port: int | None = setting(Whole(0, 65535), None, "Not set: no server. 0: a free port, which the log names.")
    host: str = setting(
        Text(check=_check_host, what="a host name or an IP address"),
        "127.0.0.1",
        "The address to listen on. The default accepts only this machine; `0.0.0.0` or `::` lets other machines read "
        "the page.",
    )
    allow_hosts: tuple[str, ...] | None = setting(
        Texts("a list of host names"),
        None,
        "Host names under which browsers may open the page, besides localhost and IP addresses. Other names are "
        "refused, because a foreign site could point a name of its own to this server (DNS rebinding).",
    )
    token: str | None = setting(
        Text(),
        None,
        "A client with this token may force a rebalance or reset offsets. Not set: no client may.",
        secret=True,
    )


def _check_format(text: str) -> None:
    with contextlib.suppress(MissingExtra):  # the daemon itself does not need the package
        Formats([text])


@dataclass(frozen=True)
class RecordsSection:
    """[records]: which records commands and pages show. The page of a daemon shows only the errors of dead letters."""

    access: str = setting(
        Text(("operators", "viewers", "nobody")),
        "operators",
        "Which users of the page may see records. `viewers`: all users; without a login, everybody who can open the "
        "page. `nobody` also hides the errors of dead letters, which may quote records.",
    )
    masks: tuple[str, ...] | None = setting(
        Texts("a list of paths such as value.card.number", check=lambda text: Masks([text])),
        None,
        "Fields whose values are shown as `***`: `value.card.number`, `value..email` (at any depth), `headers.token`, "
        "`key`. Any mask also hides headers and the messages of errors, which may quote a record, in the log too; "
        "`!headers.trace` shows a header.",
    )
    formats: tuple[str, ...] | None = setting(
        Texts("a list of formats such as orders:value=avro:orders.avsc", check=_check_format),
        None,
        "How records are decoded, by topic: `TOPIC:key=FORMAT` or `TOPIC:value=FORMAT`.",
    )
    registry: str | None = setting(
        Text(check=Registry, what="the URL of a schema registry"),
        None,
        "The URL of a schema registry with Confluent's API. It may contain a user and a password.",
        secret=True,
    )


_PASSED_ON: Final = ("pattern", "client_id", "weight", "rack", "connect_timeout_s", "offsets")


@dataclass(frozen=True)
class Config:
    """All settings after their checks."""

    kafka: KafkaSection
    zookeeper: ZooKeeperSection
    group: GroupSection
    consume: ConsumeSection
    handler: HandlerSection
    commit: CommitSection
    log: LogSection
    web: WebSection
    records: RecordsSection

    def shown(self) -> dict[str, dict[str, Any]]:
        """Returns every setting that is set, by section, for display. Secrets are masked, also those in URLs."""
        return {
            name: {
                field.name: setting.quoted(value, str) if isinstance(value, str) or setting.secret else value
                for field in dataclasses.fields(section)
                for setting in (field.metadata["setting"],)
                if (value := getattr(getattr(self, name), field.name)) is not None
            }
            for name, section in SECTIONS.items()
        }

    @property
    def membership(self) -> MembershipOptions:
        """The membership object, with its settings from [group] and [zookeeper]."""
        zookeeper = self.zookeeper
        ensemble = {
            "zookeeper": zookeeper.hosts,
            "root": zookeeper.root,
            "session_timeout_s": zookeeper.session_timeout_s,
            "zookeeper_options": zookeeper.options() or None,
        }
        group, name = vars(self.group), self.group.membership
        return membership_from(name, group if name == "kafka" else {**group, **ensemble})

    def joining(self) -> dict[str, Any]:
        """Returns the keywords of `Consumer` for the group, without the topics."""
        assignors = self.group.assignor
        return {
            **{name: getattr(self.group, name) for name in _PASSED_ON},
            "membership": self.membership,
            "group": self.group.name,
            "assignor": assignors[0] if assignors is not None and len(assignors) == 1 else assignors,
        }

    @property
    def handling(self) -> Handling:
        """The settings of the handler. Raises ConfigError for an error class that does not exist."""
        return Handling.of(self.handling_values, "handler.")

    @property
    def handling_values(self) -> dict[str, Any]:
        """Setting name -> value, for the handler settings that `HANDLING` declares."""
        given = {**vars(self.handler), "commit_interval_s": self.commit.interval_s}
        return {name: given[name] for name in HANDLING}

    def consumer_options(self) -> dict[str, Any]:
        """Returns the keywords of `Consumer`, without the topics. The daemon commits, so automatic commits are off."""
        return {
            **self.joining(),
            **vars(self.consume),
            "brokers": ",".join(self.kafka.brokers),
            "security": self.kafka.security() or None,
            "auto_commit_interval_s": None,
        }


SECTIONS: Mapping[str, type[Any]] = get_type_hints(Config)


def load(
    path: str | os.PathLike[str],
    environ: Mapping[str, str] | None = None,
    *,
    target: bool = False,
    also: Callable[[Config, SettingsReader], None] = lambda config, reader: None,
) -> Config:
    """Loads a settings file, applies the environment variables, and checks the result.

    With `target`, the file is for the target cluster of a command with two clusters, whose variables start with
    ALLOCATOR_TO. `also` adds the faults of further checks. Raises ConfigError that lists every fault: its place, the
    value, and the allowed values.
    """
    document = _document(path)
    reader = SettingsReader(SECTIONS, os.fspath(path), TARGET_PREFIX if target else PREFIX)
    found = os.environ if environ is None else environ
    others = () if target else (f"{TARGET_PREFIX}_",)
    config = Config(**reader.read(document, {name: found[name] for name in found if not name.startswith(others)}))
    check_together(config, reader)
    also(config, reader)
    reader.faults.raise_if_any()
    return config


@dataclass(frozen=True)
class _SecuritySection(KafkaSection):
    """[kafka] of a file from which a command reads only TLS and SASL."""

    brokers: Any = shared("brokers", required=False)


def load_security(
    path: str | os.PathLike[str], environ: Mapping[str, str] | None = None, *, target: bool = False
) -> dict[str, Any]:
    """Loads TLS and SASL of Kafka as `load` does, from a file that may have no other settings."""
    prefix = TARGET_PREFIX if target else PREFIX
    reader = SettingsReader({"kafka": _SecuritySection}, os.fspath(path), prefix)
    document = {name: value for name, value in _document(path).items() if name == "kafka" or name not in SECTIONS}
    found = os.environ if environ is None else environ
    variables = {name: found[name] for name in found if name.startswith(f"{prefix}_KAFKA_")}
    kafka: KafkaSection = reader.read(document, variables)["kafka"]
    _check_kafka_security(kafka, reader)
    reader.faults.raise_if_any()
    return kafka.security()


def _document(path: str | os.PathLike[str]) -> dict[str, Any]:
    source = os.fspath(path)
    if not source:
        raise ConfigError("the name of the settings file is empty")
    try:
        found: dict[str, Any] = tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also for a number of 5,000 digits, and arrays within arrays
        raise ConfigError(f"{source}: is not TOML: {error}") from error
    return found


# keywords of `Consumer` whose setting in the file is not "group.<name>"
_NAMES: Final = {"group": "group.name", "zookeeper": "zookeeper.hosts"}
_OF_GROUP: Final = {"group": "group.name", "topics": "group.topics", "pattern": "group.pattern"}


def check_together(config: Config, reader: SettingsReader) -> None:
    """Reports settings that are valid on their own but contradict each other."""
    group, consume, handler = config.group, config.consume, config.handler
    if (group.topics is None) == (group.pattern is None):
        reader.fault(["group.topics", "group.pattern"], "set exactly one of them")
    # the daemon checks the assignor at its start: other commands read this file where its module is not installed
    joining = {**config.joining(), "assignor": None, "topics": group.topics or ()}
    for fault in MembershipConfig.of(**joining).faults():
        reader.fault([_NAMES.get(name, f"group.{name}") for name in fault.settings], fault.why)
    if group.follow_load == "reported":
        reader.fault(["group.follow_load"], 'only a program of your own can call report_load; use "handler_s"')
    for names, why in contradictions(
        config.handling_values,
        group=group.name,
        topics=group.topics or (),
        pattern=group.pattern,
        membership=group.membership,
        sink=handler.sink is not None,
        by_batch=handler.mode == "batch",
    ):
        reader.fault([_OF_GROUP.get(name, f"handler.{name}") for name in names], why)
    if consume.min_bytes > consume.prefetch_bytes:
        reader.fault(["consume.min_bytes", "consume.prefetch_bytes"], "the first is more than the second")
    _check_kafka_security(config.kafka, reader)
    _check_zookeeper_security(config.zookeeper, reader)


def _check_kafka_security(kafka: KafkaSection, reader: SettingsReader) -> None:
    protocol = kafka.security_protocol
    for key, value in dataclasses.asdict(kafka).items():
        # settings without effect would hide that the connection has no TLS or SASL
        needed = {"sasl": "SASL_", "ssl_": "SSL"}.get(key[:4])
        if value is not None and needed and needed not in protocol:
            reader.fault([f"kafka.{key}", "kafka.security_protocol"], "has no effect with this protocol")
    if protocol.startswith("SASL_"):
        if kafka.sasl_mechanism is None:
            reader.fault(["kafka.security_protocol", "kafka.sasl_mechanism"], "SASL needs a mechanism")
        elif kafka.sasl_mechanism.startswith(("PLAIN", "SCRAM")):
            for key in ("sasl_plain_username", "sasl_plain_password"):
                if getattr(kafka, key) is None:
                    reader.fault(["kafka.sasl_mechanism", f"kafka.{key}"], "the mechanism needs it")
        for names, why in mechanism_faults(dataclasses.asdict(kafka)):
            reader.fault([f"kafka.{name}" for name in names], why)
    if (kafka.ssl_keyfile is not None or kafka.ssl_password is not None) and kafka.ssl_certfile is None:
        given = "ssl_keyfile" if kafka.ssl_keyfile is not None else "ssl_password"
        reader.fault([f"kafka.{given}", "kafka.ssl_certfile"], "has no effect without a certificate")


def _check_zookeeper_security(zookeeper: ZooKeeperSection, reader: SettingsReader) -> None:
    for first, second in (("digest_username", "digest_password"), ("digest_password", "digest_username")):
        if getattr(zookeeper, first) is not None and getattr(zookeeper, second) is None:
            reader.fault([f"zookeeper.{first}", f"zookeeper.{second}"], "set both or neither")
    for key in ("sasl_username", "sasl_password"):
        if getattr(zookeeper, key) is not None and zookeeper.sasl_mechanism != "DIGEST-MD5":
            reader.fault([f"zookeeper.{key}", "zookeeper.sasl_mechanism"], 'only "DIGEST-MD5" uses it')
        if getattr(zookeeper, key) is None and zookeeper.sasl_mechanism == "DIGEST-MD5":
            reader.fault(["zookeeper.sasl_mechanism", f"zookeeper.{key}"], "the mechanism needs it")
    for key in _TLS:
        if getattr(zookeeper, key) is not None and not zookeeper.tls:
            reader.fault([f"zookeeper.{key}", "zookeeper.tls"], "has no effect without TLS")
