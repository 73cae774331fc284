"""TLS, SASL and a proxy on the way to a broker."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_broker import FakeBroker
from fake_proxy import FakeProxy
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.consumer import FetchRequest, JoinGroupRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from allocator.core.client.client import KafkaClient
from allocator.errors import BrokerError, BrokersUnavailable
from allocator.testing import wait_until_async


def find() -> Any:
    return FindCoordinatorRequest(key="g", max_version=3)


async def test_tls_with_the_right_authority(server_context: ssl.SSLContext, certificate: Path) -> None:
    async with FakeBroker(tls=server_context) as broker:
        broker.host = "localhost"
        security = {"security_protocol": "SSL", "ssl_cafile": str(certificate / "ca.pem")}
        async with KafkaClient(f"localhost:{broker.port}", security=security) as client:
            broker.topics["t"] = [1] * 2000  # an answer of many TLS records
            await client.refresh(["t"])
            assert len(client.partitions("t") or ()) == 2000
            assert (await client.send(1, find())).error_code == 0


@pytest.mark.parametrize("scheme", ["http", "socks5h"])
async def test_tls_through_a_proxy_checks_the_name_of_the_broker(
    scheme: str, server_context: ssl.SSLContext, certificate: Path
) -> None:
    async with FakeBroker(tls=server_context) as broker, FakeProxy() as proxy:
        broker.host = "localhost"
        security = {"security_protocol": "SSL", "ssl_cafile": str(certificate / "ca.pem")}
        security["proxy_url"] = f"{scheme}://127.0.0.1:{proxy.port}"
        async with KafkaClient(f"localhost:{broker.port}", security=security) as client:
            assert (await client.send(1, find())).error_code == 0
        with pytest.raises(BrokersUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await KafkaClient(f"127.0.0.1:{broker.port}", security=security).connect(2.0)
        assert set(proxy.targets) == {f"localhost:{broker.port}", f"127.0.0.1:{broker.port}"}


async def test_tls_with_the_wrong_authority_says_so(server_context: ssl.SSLContext) -> None:
    async with FakeBroker(tls=server_context) as broker:
        client = KafkaClient(f"localhost:{broker.port}", security={"security_protocol": "SSL"})
        with pytest.raises(BrokersUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await client.connect(0.5)


@pytest.fixture
def expired(certificate: Path, tmp_path: Path) -> ssl.SSLContext:
    """Of a broker whose certificate is signed by the authority and ended yesterday."""
    ca, key = certificate / "ca.pem", certificate / "key.pem"
    (tmp_path / "names").write_text("subjectAltName=DNS:localhost\n")
    for command in (
        f"req -new -key {key} -out old.csr -subj /CN=broker",
        f"x509 -req -in old.csr -CA {ca} -CAkey {key} -CAcreateserial -CAserial serial -days -1 -extfile names "
        "-out old.pem",
    ):
        subprocess.run(["openssl", *command.split()], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "old.pem", key)
    return context


async def test_an_expired_certificate_of_the_broker_is_to_be_renewed(
    expired: ssl.SSLContext, certificate: Path
) -> None:
    security = {"security_protocol": "SSL", "ssl_cafile": str(certificate / "ca.pem")}
    async with FakeBroker(tls=expired) as broker:
        with pytest.raises(BrokersUnavailable, match="certificate has expired") as told:
            await KafkaClient(f"localhost:{broker.port}", security=security).connect(2.0)
    assert "Renew the broker's certificate; if it is new, correct this machine's clock." in str(told.value)
    assert "ssl_cafile" not in str(told.value)


async def test_tls_with_the_wrong_name_says_so(server_context: ssl.SSLContext, certificate: Path) -> None:
    async with FakeBroker(tls=server_context) as broker:
        security = {"security_protocol": "SSL", "ssl_cafile": str(certificate / "ca.pem")}
        client = KafkaClient(f"127.0.0.1:{broker.port}", security=security)
        with pytest.raises(BrokersUnavailable, match=r"127\.0\.0\.1"):
            await client.connect(0.5)


async def test_plain_text_to_a_tls_broker_does_not_hang(server_context: ssl.SSLContext) -> None:
    async with FakeBroker(tls=server_context) as broker:
        with pytest.raises(BrokersUnavailable):
            await KafkaClient(broker.address).connect(1)


def sasl_broker(password: str) -> FakeBroker:
    def handshake(request: Any) -> Any:
        return SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"], version=request.API_VERSION)

    def authenticate(request: Any) -> Any:
        good = bytes(request.auth_bytes) == b"user\0user\0" + password.encode()
        return SaslAuthenticateResponse(
            error_code=0 if good else 58,
            error_message=None if good else "no",
            auth_bytes=b"",
            session_lifetime_ms=0,
            version=request.API_VERSION,
        )

    return FakeBroker({17: handshake, 36: authenticate})


def plain(password: str) -> dict[str, str]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "user",
        "sasl_plain_password": password,
    }


async def test_sasl_plain() -> None:
    async with (
        sasl_broker("s3cret") as broker,
        KafkaClient(broker.address, security=plain("s3cret")) as client,
    ):
        assert (await client.send(1, find())).error_code == 0


async def test_refused_credentials_are_told_at_once_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)
    async with sasl_broker("s3cret") as broker:
        client = KafkaClient(broker.address, security=plain("wr0ng"))
        with pytest.raises(BrokersUnavailable, match=r"SASL_AUTHENTICATION_FAILED.*credentials") as caught:
            await asyncio.wait_for(client.connect(300), 30)
        assert not caught.value.retriable
        assert "wr0ng" not in str(caught.value) + caplog.text


async def test_a_mechanism_that_the_broker_lacks_is_named() -> None:
    async with sasl_broker("s3cret") as broker:
        security = {**plain("s3cret"), "sasl_mechanism": "SCRAM-SHA-256"}
        with pytest.raises(BrokersUnavailable, match="SCRAM-SHA-256"):
            await asyncio.wait_for(KafkaClient(broker.address, security=security).connect(300), 30)


class Provider(AbstractTokenProvider):
    """Tokens of the function `make`, which a test replaces."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def token(self) -> str:
        return str(self.make())


def oauth_broker() -> FakeBroker:
    def handshake(request: Any) -> Any:
        return SaslHandshakeResponse(error_code=0, mechanisms=["OAUTHBEARER"], version=request.API_VERSION)

    def authenticate(request: Any) -> Any:
        fields = {"error_message": None, "auth_bytes": b"", "session_lifetime_ms": 0, "version": request.API_VERSION}
        return SaslAuthenticateResponse(error_code=0, **fields)

    return FakeBroker({17: handshake, 36: authenticate})


def oauth(provider: Provider) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
    }


async def test_a_token_provider_that_fails_is_asked_again() -> None:
    """Its outage is one of the connection: a request fails, names the cause, and may be repeated."""
    works = True

    def token() -> str:
        if not works:
            raise LookupError("the identity server is away")
        return "t"

    async with oauth_broker() as broker, KafkaClient(broker.address, security=oauth(Provider(token))) as client:
        assert (await client.send(1, find())).error_code == 0
        works = False
        client.hang_up(1, FindCoordinatorRequest)
        with pytest.raises(BrokerError, match=r"OAUTHBEARER.*identity server is away") as caught:
            await client.send(1, find())
        assert caught.value.retriable
        works = True

        async def answered() -> bool:
            try:
                return bool((await client.send(1, find())).error_code == 0)
            except BrokerError as exc:
                assert exc.retriable
                return False

        await wait_until_async(answered, 60)


async def test_a_token_provider_that_fails_at_first_is_waited_for() -> None:
    async with oauth_broker() as broker:
        client = KafkaClient(broker.address, security=oauth(Provider(lambda: {}["token"])))
        with pytest.raises(BrokersUnavailable, match="KeyError") as caught:
            await client.connect(0.5)
        assert caught.value.retriable


async def test_a_slow_token_provider_holds_up_no_other_task() -> None:
    """The token comes only after another task of the loop ran. No two calls run at one time."""
    ran, running, calls = threading.Event(), threading.Lock(), []

    def token() -> str:
        assert running.acquire(blocking=False), "two calls at one time"
        try:
            calls.append(ran.wait(60))
            return "t"
        finally:
            running.release()

    async def others() -> None:
        await wait_until_async(lambda: running.locked(), 60)
        ran.set()

    async with oauth_broker() as broker:
        client = KafkaClient(broker.address, security=oauth(Provider(token)))
        await asyncio.gather(client.connect(60), others())
        await asyncio.gather(*(client.prepare(1, each) for each in (FetchRequest, JoinGroupRequest)))
        await client.close()
    assert calls == [True, True, True]


async def test_a_broker_that_does_not_know_the_password_is_not_trusted() -> None:
    """SCRAM: its signature is wrong. The error ends the connecting, as wrong credentials do."""

    def handshake(request: Any) -> Any:
        return SaslHandshakeResponse(error_code=0, mechanisms=["SCRAM-SHA-256"], version=request.API_VERSION)

    def authenticate(request: Any) -> Any:
        first = bytes(request.auth_bytes)
        nonce = first.rpartition(b"r=")[2]
        said = b"r=" + nonce + b"x,s=c2FsdA==,i=4096" if first.startswith(b"n,,") else b"v=d3Jvbmc="
        fields = {"error_message": None, "session_lifetime_ms": 0, "version": request.API_VERSION}
        return SaslAuthenticateResponse(error_code=0, auth_bytes=said, **fields)

    async with FakeBroker({17: handshake, 36: authenticate}) as broker:
        security = {**plain("s3cret"), "sasl_mechanism": "SCRAM-SHA-256"}
        with pytest.raises(BrokersUnavailable, match="does not prove its identity") as caught:
            await asyncio.wait_for(KafkaClient(broker.address, security=security).connect(300), 60)
        assert not caught.value.retriable


async def test_a_host_name_that_is_none_is_named() -> None:
    with pytest.raises(BrokersUnavailable, match="no valid host name"):
        await KafkaClient(f"{'x' * 70}:9092").connect(0.5)
