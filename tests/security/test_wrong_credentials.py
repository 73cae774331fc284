"""Wrong credentials or TLS settings are refused with one line that has a remedy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import pytest

from allocator.core.client.client import KafkaClient
from allocator.errors import BrokersUnavailable, ConfigError, ZooKeeperUnavailable
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from tests.security.certificates import Certificates
from tests.security.secured import Secured, secrets_in

TIMEOUT_S: Final = 5.0  # for all of them together
Settings = Callable[[Secured, Certificates], dict[str, Any]]
CORRECT, NEEDS_TLS, USES_TLS = "correct the credentials", "This port needs TLS", "Check that the port uses TLS"


@pytest.fixture(scope="module")
def untrusted(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority that the servers do not trust, with a client certificate."""
    certificates = Certificates(tmp_path_factory.mktemp("untrusted"))
    certificates.make("client")
    return certificates


def of(listener: str, mechanism: str = "PLAIN", **changed: Any) -> Settings:
    return lambda secured, untrusted: {**secured.kafka(listener, mechanism), **changed}


def tls(secured: Secured, untrusted: Certificates) -> dict[str, Any]:
    return {"security_protocol": "SSL", "ssl_cafile": str(secured.certificates.ca)}


def tls_of_untrusted(secured: Secured, untrusted: Certificates) -> dict[str, Any]:
    files = {"ssl_certfile": str(untrusted.certificate("client")), "ssl_keyfile": str(untrusted.key("client"))}
    return {**tls(secured, untrusted), **files}


# fault: listener, wrong settings, text of the error
KAFKA: Final[dict[str, tuple[str, Settings, str]]] = {
    "PLAIN password": ("SASL_PLAINTEXT", of("SASL_PLAINTEXT", sasl_plain_password="wrong"), CORRECT),
    "SCRAM password": ("SASL_SSL", of("SASL_SSL", "SCRAM-SHA-512", sasl_plain_password="wrong"), CORRECT),
    "user": ("SASL_SSL", of("SASL_SSL", "SCRAM-SHA-256", sasl_plain_username="nobody"), CORRECT),
    "mechanism": ("SASL_PLAINTEXT", of("SASL_PLAINTEXT", sasl_mechanism="GSSAPI"), "sasl_mechanism"),
    "untrusted authority": ("SASL_SSL", lambda s, u: {**s.kafka("SASL_SSL"), "ssl_cafile": str(u.ca)}, "ssl_cafile"),
    "no authority": ("SASL_SSL", of("SASL_SSL", ssl_cafile=None), "ssl_cafile"),
    "no client certificate": ("SSL", tls, "ssl_certfile"),
    "untrusted client certificate": ("SSL", tls_of_untrusted, "ssl_certfile"),
    "plain text to TLS": ("SSL", lambda s, u: {}, NEEDS_TLS),
    "plain text to SASL": ("SASL_PLAINTEXT", lambda s, u: {}, "security_protocol"),
    "SASL in the clear to TLS": ("SASL_SSL", of("SASL_PLAINTEXT"), NEEDS_TLS),
    "TLS to plain text": ("PLAINTEXT", of("SSL"), USES_TLS),
    "SASL to plain text": ("PLAINTEXT", of("SASL_PLAINTEXT"), "security_protocol"),
    "SASL over TLS to plain text": ("PLAINTEXT", of("SASL_SSL"), USES_TLS),
    "TLS to SASL over TLS": ("SASL_SSL", tls, "its port for SSL"),
}


async def test_a_refusal_of_a_broker_is_one_line_with_a_remedy(
    secured: Secured, untrusted: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def connect(fault: str) -> None:
        listener, settings, remedy = KAFKA[fault]
        brokers = secured.brokers(listener)
        client = KafkaClient(brokers, security=settings(secured, untrusted))
        with pytest.raises(BrokersUnavailable) as refused:
            await client.connect(TIMEOUT_S)
        await client.close()
        assert remedy in str(refused.value), fault
        assert_one_line(str(refused.value), brokers)

    await asyncio.gather(*map(connect, KAFKA))
    logged = {record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING}
    assert all("unencrypted" in text for text in logged), logged


def keeper_tls(secured: Secured, untrusted: Certificates) -> dict[str, Any]:
    return {"use_ssl": True, "ca": str(secured.certificates.ca)}


def keeper_tls_of_untrusted(secured: Secured, untrusted: Certificates) -> dict[str, Any]:
    files = {"certfile": str(untrusted.certificate("client")), "keyfile": str(untrusted.key("client"))}
    return {**keeper_tls(secured, untrusted), **files}


# fault: whether the port has TLS, wrong options, text of the error
ZOOKEEPER: Final[dict[str, tuple[bool, Settings, str]]] = {
    "untrusted authority": (True, lambda s, u: {**s.zookeeper_options(), "ca": str(u.ca)}, "Correct ca"),
    "no certificate": (True, keeper_tls, "certfile"),
    "untrusted certificate": (True, keeper_tls_of_untrusted, "certfile"),
    "plain text to TLS": (True, lambda s, u: {}, "a ZooKeeper port without TLS"),
    "TLS to plain text": (False, lambda s, u: s.zookeeper_options(), USES_TLS),
}


async def test_a_refusal_of_zookeeper_is_one_line_with_a_remedy(
    secured: Secured, untrusted: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def connect(fault: str) -> None:
        has_tls, options, remedy = ZOOKEEPER[fault]
        hosts = secured.zookeeper if has_tls else secured.cluster.zookeeper
        with pytest.raises(ZooKeeperUnavailable) as refused:
            await ZooKeeperClient(hosts, options=options(secured, untrusted)).connect(TIMEOUT_S)
        assert remedy in str(refused.value), fault
        assert_one_line(str(refused.value), hosts)

    await asyncio.gather(*map(connect, ZOOKEEPER))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_files_that_cannot_be_read_are_named(secured: Secured) -> None:
    for options, file in (
        ({"use_ssl": True, "ca": "/nowhere/ca.pem"}, r"/nowhere/ca\.pem"),
        ({**secured.zookeeper_options(), "keyfile_password": "wrong"}, r"client\.key"),
    ):
        with pytest.raises(ConfigError, match=file):
            await ZooKeeperClient(secured.zookeeper, options=options).connect(5)


def assert_one_line(message: str, address: str) -> None:
    assert address in message
    assert "\n" not in message
    assert secrets_in(message) == []
