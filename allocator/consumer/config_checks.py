"""Settings of `allocator run` that are fine one by one and contradict each other."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from allocator.consumer.joining import ON_ZOOKEEPER, PLACES
from allocator.consumer.settings import Reader
from allocator.errors import ConfigError, MissingExtra
from allocator.membership.patterns import check_pattern
from allocator.membership.znodes import Paths

if TYPE_CHECKING:
    from allocator.consumer.config import Config, KafkaSettings, ZooKeeperSettings

__all__ = ["check_together"]


def check_together(config: Config, reader: Reader) -> None:
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


def _check_kafka_security(kafka: KafkaSettings, reader: Reader) -> None:
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


def _check_zookeeper_security(zookeeper: ZooKeeperSettings, reader: Reader) -> None:
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
