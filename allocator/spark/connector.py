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
    "kafka.sasl.oauthbearer.client.credentials.client.id": "security.sasl_oauth_client_id",
    "kafka.sasl.oauthbearer.client.credentials.client.secret": "security.sasl_oauth_client_secret",
    "kafka.sasl.oauthbearer.scope": "security.sasl_oauth_scope",
    "kafka.sasl.kerberos.service.name": "security.sasl_kerberos_service_name",
    "kafka.ssl.key.password": "security.ssl_password",
    "kafka.sasl.jaas.config": "java.jaas",
    "kafka.ssl.truststore.location": "java.truststore",
    "kafka.ssl.truststore.type": "java.store_type",
    "kafka.ssl.keystore.location": "java.keystore",
    "kafka.ssl.keystore.type": "java.store_type",
    "kafka.ssl.endpoint.identification.algorithm": "java.hostname",
}

_FLAGS = re.compile(r"\(\?([aiLmsux]+)\)")  # at the start of a pattern; Python allows them nowhere else


def enclosed(pattern: str) -> str:
    """Returns the pattern in a group, so that more can stand around it."""
    flags = _FLAGS.match(pattern)
    return f"(?:{pattern})" if flags is None else f"(?{flags[1]}:{pattern[flags.end() :]})"


def anywhere(pattern: str) -> str:
    """Returns a pattern that matches the whole of each name in which `pattern` matches some part.

    The connector searches `subscribePattern` in the names of the topics.
    """
    return f"(?s:.*){enclosed(pattern)}(?s:.*)" if pattern else pattern


# options of the Java client that change neither the records nor who may read them; this source ignores them
_CLIENT = """
    acks allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter batch.size
    bootstrap.resolve.timeout.ms buffer.memory buffer.memory.allocation.strategy check.crcs client.dns.lookup
    client.id compression.gzip.level compression.lz4.level compression.zstd.level connections.max.idle.ms
    default.api.timeout.ms delivery.timeout.ms enable.idempotence enable.metrics.push exclude.internal.topics
    fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.instance.id group.protocol group.remote.assignor
    heartbeat.interval.ms linger.ms max.block.ms max.in.flight.requests.per.connection
    max.poll.interval.ms max.poll.records max.request.size metadata.cluster.check.enable metadata.max.age.ms
    metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
    metrics.num.samples metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.rack.aware
    receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries
    retry.backoff.max.ms retry.backoff.ms sasl.client.callback.handler.class sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.oauthbearer.allow.unverified.audience
    sasl.oauthbearer.allow.unverified.issuer sasl.oauthbearer.clock.skew.seconds
    sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope.claim.name
    sasl.oauthbearer.sub.claim.name security.providers send.buffer.bytes session.timeout.ms
    share.acknowledgement.mode share.acquire.mode socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols ssl.keymanager.algorithm
    ssl.keystore.password ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
    ssl.truststore.password transaction.timeout.ms
"""
WITHOUT_EFFECT = (
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    *map("kafka.{}".format, _CLIENT.split()),
)

_ASSERTION = """
    algorithm claim.aud claim.exp.seconds claim.iss claim.jti.include claim.nbf.seconds claim.sub file
    private.key.file private.key.passphrase template.file
"""

# options that Spark's connector also refuses, or that cannot be ignored -> the advice
INSTEAD: Mapping[str, str] = {
    "kafka.auto.offset.reset": "starting_offsets sets the start",
    "kafka.enable.auto.commit": "commit = after_batch commits",
    **dict.fromkeys(
        ("kafka.key.deserializer", "kafka.value.deserializer", "kafka.key.serializer", "kafka.value.serializer"),
        "keys and values are bytes; cast the columns",
    ),
    "provider": (
        "Spark gives a Python source none of the options of a table when it reads it; use CREATE TEMPORARY VIEW name "
        "USING allocator OPTIONS (...)"
    ),
    "kafka.interceptor.classes": "Python loads no Java class: change the records in the columns of the frame",
    "kafka.config.providers": "values are not looked up here; give the values themselves",
    "kafka.ssl.truststore.certificates": "give a file: security.ssl_cafile",
    "kafka.ssl.keystore.certificate.chain": "give a file: security.ssl_certfile",
    "kafka.ssl.keystore.key": "give a file: security.ssl_keyfile",
    "kafka.ssl.engine.factory.class": "Python connects: give security.ssl_cafile, ssl_certfile and ssl_keyfile",
    **dict.fromkeys(
        ("kafka.partitioner.class", "kafka.partitioner.ignore.keys"),
        "the hash of the key chooses the partition; name another one in the column partition",
    ),
    **dict.fromkeys(
        ("kafka.transactional.id", "kafka.transaction.two.phase.commit.enable"),
        "the sink writes at least once, without transactions",
    ),
    **dict.fromkeys(
        map("kafka.sasl.oauthbearer.assertion.{}".format, _ASSERTION.split()),
        "give security.sasl_oauth_token_endpoint with sasl_oauth_client_id and sasl_oauth_client_secret",
    ),
}


def _jaas(text: str) -> dict[str, str]:
    # read as by Java's StreamTokenizer: a backslash escapes a quote or a backslash in a quoted value
    pairs = re.findall(r"""(\w+)\s*=\s*(?:(["'])((?:\\.|(?!\2).)*)\2|([^\s"';]+))""", text, re.DOTALL)
    found = {
        name: re.sub(r"\\(.)", r"\1", inside, flags=re.DOTALL) if quote else plain
        for name, quote, inside, plain in pairs
    }
    module = re.search(r"\.(Plain|Scram|OAuthBearer|IAM|Krb5)LoginModule\b", text)
    if module and module[1] == "IAM":
        return {}
    if module and module[1] == "OAuthBearer":
        names = {"clientId": "client_id", "clientSecret": "client_secret", "scope": "scope"}
        return {f"sasl_oauth_{own}": found[java] for java, own in names.items() if java in found}
    if module and module[1] == "Krb5":
        if "keyTab" in found:
            raise ValueError(
                "Python takes the key table from the environment: set KRB5_CLIENT_KTNAME on the driver and the "
                "executors, and omit keyTab and principal"
            )
        return {"sasl_kerberos_service_name": found["serviceName"]} if "serviceName" in found else {}
    if module and {"username", "password"} <= found.keys():
        return {"sasl_plain_username": found["username"], "sasl_plain_password": found["password"]}
    if module:
        raise ValueError(f"{module[1]}LoginModule needs username and password")
    raise ValueError(
        "only PlainLoginModule, ScramLoginModule, OAuthBearerLoginModule, Krb5LoginModule and IAMLoginModule are "
        "supported; give the options security.sasl_* instead"
    )


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
