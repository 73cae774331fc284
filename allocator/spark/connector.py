"""Translates option names of Spark's own Kafka connector and of the Java client. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

# the connector's or Java's name -> this library's name, if they differ by more than case, dots and underscores
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
    "kafka.sasl.oauthbearer.token.endpoint.url": "security.sasl_oauth_token_endpoint",
    "kafka.sasl.kerberos.service.name": "security.sasl_kerberos_service_name",
    "kafka.ssl.key.password": "security.ssl_password",
    "kafka.sasl.jaas.config": "java.jaas",
    "kafka.ssl.truststore.location": "java.truststore",
    "kafka.ssl.truststore.type": "java.store_type",
    "kafka.ssl.keystore.location": "java.keystore",
    "kafka.ssl.keystore.type": "java.store_type",
    "kafka.ssl.endpoint.identification.algorithm": "java.hostname",
}

# tuning options of the Java client, which this source ignores with a warning
_CLIENT = """
    acks allow.auto.create.topics batch.size buffer.memory check.crcs client.dns.lookup client.id
    connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms enable.idempotence fetch.max.bytes
    fetch.max.wait.ms fetch.min.bytes group.instance.id heartbeat.interval.ms linger.ms max.block.ms
    max.in.flight.requests.per.connection max.poll.interval.ms max.poll.records max.request.size metadata.max.age.ms
    metadata.max.idle.ms metadata.recovery.strategy partition.assignment.strategy receive.buffer.bytes
    reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
    sasl.client.callback.handler.class sasl.login.callback.handler.class send.buffer.bytes session.timeout.ms
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.enabled.protocols
    ssl.keystore.password ssl.protocol ssl.truststore.password
"""
WITHOUT_EFFECT = (
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    *map("kafka.{}".format, _CLIENT.split()),
)

# options that Spark's connector also refuses -> the advice
INSTEAD: Mapping[str, str] = {
    "kafka.auto.offset.reset": "starting_offsets sets the start",
    "kafka.enable.auto.commit": "commit = after_batch commits",
    **dict.fromkeys(
        ("kafka.key.deserializer", "kafka.value.deserializer", "kafka.key.serializer", "kafka.value.serializer"),
        "keys and values are bytes; cast the columns",
    ),
}


def _jaas(text: str) -> dict[str, str]:
    # quoted as in Java's StreamTokenizer: a backslash escapes a quote or a backslash
    quoted = re.findall(r"""(\w+)\s*=\s*(["'])((?:\\.|(?!\2).)*)\2""", text, re.DOTALL)
    found = {name: re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL) for name, _, value in quoted}
    module = re.search(r"\.(Plain|Scram|OAuthBearer|IAM)LoginModule\b", text)
    if module and module[1] == "IAM":
        return {}
    if module and module[1] == "OAuthBearer":
        names = {"clientId": "client_id", "clientSecret": "client_secret", "scope": "scope"}
        return {f"sasl_oauth_{own}": found[java] for java, own in names.items() if java in found}
    if not module or not {"username", "password"} <= found.keys():
        raise ValueError(
            "only PlainLoginModule and ScramLoginModule with username and password, OAuthBearerLoginModule and "
            "IAMLoginModule are supported; give security.sasl_plain_username and security.sasl_plain_password instead"
        )
    return {"sasl_plain_username": found["username"], "sasl_plain_password": found["password"]}


def _pem(option: str, *keys: str) -> Callable[[str], dict[str, str]]:
    def translate(text: str) -> dict[str, str]:
        if not text.lower().endswith((".pem", ".crt", ".cer")):
            raise ValueError(
                "a Java key store cannot be read by Python; export it as PEM (keytool -exportcert -rfc, or openssl "
                f"pkcs12) and give {option}"
            )
        return dict.fromkeys(keys, text)

    return translate


def _store_type(text: str) -> dict[str, str]:
    if text.upper() != "PEM":
        raise ValueError(f"{text} cannot be read by Python; export the certificates as PEM and give PEM")
    return {}


def _hostname(text: str) -> dict[str, str]:
    return {"ssl_check_hostname": "true" if text else "false"}


# functions that translate a Java setting into kafka-python's; they raise ValueError
JAVA: Mapping[str, Callable[[str], dict[str, str]]] = {
    "java.jaas": _jaas,
    "java.truststore": _pem("security.ssl_cafile", "ssl_cafile"),
    "java.keystore": _pem("security.ssl_certfile and security.ssl_keyfile", "ssl_certfile", "ssl_keyfile"),
    "java.store_type": _store_type,
    "java.hostname": _hostname,
}
