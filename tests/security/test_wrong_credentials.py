"""Wrong credentials or TLS settings give one line that names them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from certificates import Certificates
from secrets_and_doors import SECRETS, Secured

from allocator.core.client.client import KafkaClient
from allocator.core.zookeeper.client import ZooKeeperClient
from allocator.errors import BrokersUnavailable, ZooKeeperUnavailable

TIMEOUT_S: Final = 5.0  # for all of them together


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An untrusted authority with a client certificate."""
    made = Certificates(tmp_path_factory.mktemp("strangers"))
    made.make("client")
    return made


# fault -> (port, wrong settings, text of the error)
Door = tuple[str, Callable[[Secured, Certificates], Mapping[str, Any]], str]
KAFKA: Final[Mapping[str, Door]] = {
    "PLAIN password": (
        "SASL_PLAINTEXT",
        lambda ours, _: {**ours.kafka("SASL_PLAINTEXT"), "sasl_plain_password": "wrong"},
        "correct the credentials",
    ),
    "SCRAM password": (
        "SASL_SSL",
        lambda ours, _: {**ours.kafka("SASL_SSL", "SCRAM-SHA-512"), "sasl_plain_password": "wrong"},
        "correct the credentials",
    ),
    "user": (
        "SASL_SSL",
        lambda ours, _: {**ours.kafka("SASL_SSL", "SCRAM-SHA-256"), "sasl_plain_username": "nobody"},
        "correct the credentials",
    ),
    "mechanism": (
        "SASL_PLAINTEXT",
        lambda ours, _: {**ours.kafka("SASL_PLAINTEXT"), "sasl_mechanism": "GSSAPI"},
        "sasl_mechanism",
    ),
    "authority": (
        "SASL_SSL",
        lambda ours, theirs: {**ours.kafka("SASL_SSL"), "ssl_cafile": str(theirs.ca)},
        "ssl_cafile",
    ),
    "no authority": (
        "SASL_SSL",
        lambda ours, _: {k: v for k, v in ours.kafka("SASL_SSL").items() if k != "ssl_cafile"},
        "ssl_cafile",
    ),
    "no client certificate": (
        "SSL",
        lambda ours, _: {"security_protocol": "SSL", "ssl_cafile": str(ours.certificates.ca)},
        "ssl_certfile",
    ),
    "client certificate of strangers": (
        "SSL",
        lambda ours, theirs: {
            "security_protocol": "SSL",
            "ssl_cafile": str(ours.certificates.ca),
            "ssl_certfile": str(theirs.certificate("client")),
            "ssl_keyfile": str(theirs.key("client")),
        },
        "ssl_certfile",
    ),
    "plain text to TLS": ("SSL", lambda *_: {}, "This port needs TLS"),
    "plain text to SASL": ("SASL_PLAINTEXT", lambda *_: {}, "security_protocol"),
    "SASL in the clear to TLS": ("SASL_SSL", lambda ours, _: ours.kafka("SASL_PLAINTEXT"), "This port needs TLS"),
    "TLS to plain text": ("PLAINTEXT", lambda ours, _: ours.kafka("SSL"), "Check that the port uses TLS"),
    "SASL to plain text": ("PLAINTEXT", lambda ours, _: ours.kafka("SASL_PLAINTEXT"), "security_protocol"),
    "SASL over TLS to plain text": (
        "PLAINTEXT",
        lambda ours, _: ours.kafka("SASL_SSL"),
        "Check that the port uses TLS",
    ),
    "TLS to SASL over TLS": (
        "SASL_SSL",
        lambda ours, _: {"security_protocol": "SSL", "ssl_cafile": str(ours.certificates.ca)},
        "its port for SSL",
    ),
}


async def test_a_refusal_of_a_broker_is_one_line_with_a_remedy(
    secured: Secured, strangers: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def told(wrong: str) -> None:
        door, settings, remedy = KAFKA[wrong]
        brokers = secured.cluster.bootstrap if door == "PLAINTEXT" else secured.brokers(door)
        client = KafkaClient(brokers, security=settings(secured, strangers))
        with pytest.raises(BrokersUnavailable) as refused:
            await client.connect(TIMEOUT_S)
        await client.close()
        assert remedy in str(refused.value), wrong
        judge(str(refused.value), brokers)

    await asyncio.gather(*map(told, KAFKA))
    logged = {record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING}
    assert all("unencrypted" in text for text in logged), logged


# fault -> (whether the port has TLS, wrong options, text of the error)
Keeper = tuple[bool, Callable[[Secured, Certificates], Mapping[str, Any]], str]
ZOOKEEPER: Final[Mapping[str, Keeper]] = {
    "authority": (True, lambda ours, theirs: {**ours.zookeeper_options(), "ca": str(theirs.ca)}, "Correct ca"),
    "no certificate": (True, lambda ours, _: {"use_ssl": True, "ca": str(ours.certificates.ca)}, "certfile"),
    "certificate of strangers": (
        True,
        lambda ours, theirs: {
            "use_ssl": True,
            "ca": str(ours.certificates.ca),
            "certfile": str(theirs.certificate("client")),
            "keyfile": str(theirs.key("client")),
        },
        "certfile",
    ),
    "plain text to TLS": (True, lambda *_: {}, "a ZooKeeper port without TLS"),
    "TLS to plain text": (False, lambda ours, _: ours.zookeeper_options(), "Check that the port uses TLS"),
}


async def test_a_refusal_of_zookeeper_is_one_line_with_a_remedy(
    secured: Secured, strangers: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def told(wrong: str) -> None:
        tls, options, remedy = ZOOKEEPER[wrong]
        hosts = secured.zookeeper if tls else secured.cluster.zookeeper
        with pytest.raises(ZooKeeperUnavailable) as refused:
            await ZooKeeperClient(hosts, options=options(secured, strangers)).connect(TIMEOUT_S)
        assert remedy in str(refused.value), wrong
        judge(str(refused.value), hosts)

    await asyncio.gather(*map(told, ZOOKEEPER))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def judge(said: str, address: str) -> None:
    """One line with the address and no secret."""
    assert address in said
    assert "\n" not in said
    assert not [secret for secret in SECRETS if secret in said]
