"""The names that Spark's own Kafka connector, and the Java client behind it, have for the same options. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

__all__ = ["JAVA", "NAMES", "WITHOUT_EFFECT"]

# where a name differs from ours by more than case, dots and underscores
NAMES: Mapping[str, str] = {
    "kafka.bootstrap.servers": "brokers",
    "subscribe": "topics",
    "subscribePattern": "topics_pattern",
    "startingTimestamp": "starting_timestamps",
    "startingOffsetsByTimestamp": "starting_timestamps",
    "endingTimestamp": "ending_timestamps",
    "endingOffsetsByTimestamp": "ending_timestamps",
    "startingOffsetsByTimestampStrategy": "timestamp_strategy",
    "kafka.group.id": "group",
    "kafka.isolation.level": "isolation_level",
    "kafka.client.rack": "rack",
    "kafka.max.partition.fetch.bytes": "fetch_bytes",
    "kafka.compression.type": "compression",
    "security.protocol": "security.security_protocol",
    "kafka.security.protocol": "security.security_protocol",
    "kafka.sasl.mechanism": "security.sasl_mechanism",
    "kafka.sasl.kerberos.service.name": "security.sasl_kerberos_service_name",
    "kafka.ssl.key.password": "security.ssl_password",
    "kafka.sasl.jaas.config": "java.jaas",
    "kafka.ssl.truststore.location": "java.truststore",
    "kafka.ssl.truststore.type": "java.store_type",
    "kafka.ssl.keystore.location": "java.keystore",
    "kafka.ssl.keystore.type": "java.store_type",
    "kafka.ssl.endpoint.identification.algorithm": "java.hostname",
}

# tuning of a client that is not there: a job that has them runs without them, and a line in the log says so
WITHOUT_EFFECT = (
    "groupIdPrefix",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafka.acks",
    "kafka.batch.size",
    "kafka.client.id",
    "kafka.default.api.timeout.ms",
    "kafka.fetch.max.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.fetch.min.bytes",
    "kafka.heartbeat.interval.ms",
    "kafka.linger.ms",
    "kafka.max.poll.interval.ms",
    "kafka.max.poll.records",
    "kafka.metadata.max.age.ms",
    "kafka.receive.buffer.bytes",
    "kafka.request.timeout.ms",
    "kafka.session.timeout.ms",
)


def _jaas(text: str) -> dict[str, str]:
    found = {name: value for name, _, value in re.findall(r"(\w+)\s*=\s*([\"'])(.*?)\2", text)}
    if not re.search(r"\.(Plain|Scram)LoginModule\b", text) or not {"username", "password"} <= found.keys():
        raise ValueError(
            "only PlainLoginModule and ScramLoginModule with username and password are understood; give "
            "security.sasl_plain_username and security.sasl_plain_password instead"
        )
    return {"sasl_plain_username": found["username"], "sasl_plain_password": found["password"]}


def _pem(option: str, *keys: str) -> Callable[[str], dict[str, str]]:
    def made(text: str) -> dict[str, str]:
        if not text.lower().endswith((".pem", ".crt", ".cer")):
            raise ValueError(
                f"a Java key store cannot be read by Python; export it as PEM (keytool -exportcert -rfc, or openssl "
                f"pkcs12) and give {option}"
            )
        return dict.fromkeys(keys, text)

    return made


def _store_type(text: str) -> dict[str, str]:
    if text.upper() != "PEM":
        raise ValueError(f"{text} cannot be read by Python; export the certificates as PEM and give PEM")
    return {}


def _hostname(text: str) -> dict[str, str]:
    return {"ssl_check_hostname": "true" if text else "false"}


# Java's settings that have no counterpart of one name: text -> kafka-python's. They raise ValueError
JAVA: Mapping[str, Callable[[str], dict[str, str]]] = {
    "java.jaas": _jaas,
    "java.truststore": _pem("security.ssl_cafile", "ssl_cafile"),
    "java.keystore": _pem("security.ssl_certfile and security.ssl_keyfile", "ssl_certfile", "ssl_keyfile"),
    "java.store_type": _store_type,
    "java.hostname": _hostname,
}
