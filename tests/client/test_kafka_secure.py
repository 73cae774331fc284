"""TLS and SASL, also through a proxy."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from allocator.core.client.client import KafkaClient
from allocator.errors import BrokersUnavailable
from tests.client.fake_broker import FakeBroker, find, sasl_handlers
from tests.client.fake_proxy import FakeProxy


async def test_tls_accepts_the_right_authority_and_refuses_another_name(
    server_context: ssl.SSLContext, certificate: Path
) -> None:
    async with FakeBroker(tls=server_context) as broker:
        broker.host = "localhost"
        security = {"security_protocol": "SSL", "ssl_cafile": str(certificate / "ca.pem")}
        async with KafkaClient(f"localhost:{broker.port}", security=security) as client:
            broker.topics["t"] = [1] * 2000  # a response of many TLS records
            await client.refresh(["t"])
            assert len(client.partitions("t") or ()) == 2000
            assert (await client.send(1, find())).error_code == 0
        with pytest.raises(BrokersUnavailable, match=r"127\.0\.0\.1"):
            await KafkaClient(f"127.0.0.1:{broker.port}", security=security).connect(0.5)


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


@pytest.fixture
def expired(certificate: Path, tmp_path: Path) -> ssl.SSLContext:
    """The context of a broker whose certificate expired yesterday."""
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


async def test_an_expired_certificate_of_the_broker_is_refused(expired: ssl.SSLContext, certificate: Path) -> None:
    security = {"security_protocol": "SSL", "ssl_cafile": str(certificate / "ca.pem")}
    async with FakeBroker(tls=expired) as broker:
        with pytest.raises(BrokersUnavailable, match="certificate has expired") as caught:
            await KafkaClient(f"localhost:{broker.port}", security=security).connect(2.0)
    assert "Renew the broker's certificate; if it is new, correct this machine's clock." in str(caught.value)
    assert "ssl_cafile" not in str(caught.value)


def plain(password: str) -> dict[str, str]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "user",
        "sasl_plain_password": password,
    }


async def test_refused_credentials_raise_at_once_and_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)
    async with FakeBroker(sasl_handlers("PLAIN", lambda request: {"error_code": 58, "error_message": "no"})) as broker:
        client = KafkaClient(broker.address, security=plain("wr0ng"))
        with pytest.raises(BrokersUnavailable, match=r"SASL_AUTHENTICATION_FAILED.*credentials") as caught:
            await asyncio.wait_for(client.connect(300), 30)
        assert not caught.value.retriable
        assert "wr0ng" not in str(caught.value) + caplog.text


async def test_a_broker_with_a_wrong_scram_signature_is_refused() -> None:
    """Such a broker does not know the password."""

    def authenticate(request: Any) -> dict[str, Any]:
        first = bytes(request.auth_bytes)
        nonce = first.rpartition(b"r=")[2]
        return {"auth_bytes": b"r=" + nonce + b"x,s=c2FsdA==,i=4096" if first.startswith(b"n,,") else b"v=d3Jvbmc="}

    async with FakeBroker(sasl_handlers("SCRAM-SHA-256", authenticate)) as broker:
        security = {**plain("s3cret"), "sasl_mechanism": "SCRAM-SHA-256"}
        with pytest.raises(BrokersUnavailable, match="does not prove its identity") as caught:
            await asyncio.wait_for(KafkaClient(broker.address, security=security).connect(300), 60)
        assert not caught.value.retriable


SECRET = "pass-wörd/+9"


@pytest.mark.parametrize(
    "quote",
    [
        lambda message: f"cannot log in: {message!r}",
        lambda message: f"cannot log in: {message.decode()}",
        lambda message: f"cannot log in: {base64.b64encode(message).decode()}",
        lambda message: f"cannot log in: {base64.b64encode(message).decode()[:20]}...",
        lambda message: f"cannot log in: {message.hex()}",
        lambda message: json.dumps({"login": message.decode()}),
        lambda message: "x" * 280 + message.decode(),
    ],
    ids=["bytes", "text", "base64", "cut", "hexadecimal", "json", "long"],
)
async def test_a_broker_that_quotes_the_login_does_not_get_the_password_into_the_error(
    quote: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)

    def authenticate(request: Any) -> dict[str, Any]:
        return {"error_code": 58, "error_message": quote(bytes(request.auth_bytes))}

    async with FakeBroker(sasl_handlers("PLAIN", authenticate)) as broker:
        with pytest.raises(
            BrokersUnavailable, match=r"SASL_AUTHENTICATION_FAILED: .*correct the credentials"
        ) as caught:
            await asyncio.wait_for(KafkaClient(broker.address, security=plain(SECRET)).connect(300), 30)
    seen = str(caught.value) + caplog.text
    message = f"user\0user\0{SECRET}".encode()
    encoded = base64.b64encode(message).decode()
    for form in (SECRET[:6], SECRET.encode().hex(), encoded[:20]):
        assert form not in seen


async def test_a_password_that_cannot_be_encoded_is_refused_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeBroker(sasl_handlers("PLAIN")) as broker:
        with pytest.raises(BrokersUnavailable, match="no credentials for PLAIN: UnicodeEncodeError") as caught:
            await KafkaClient(broker.address, security=plain("s3cret\udcff")).connect(0.5)
    assert "s3cret" not in str(caught.value) + caplog.text


async def test_a_user_name_with_a_comma_or_an_equals_sign_is_escaped_for_scram() -> None:
    """RFC 5802, section 5.1. Without that, a broker reads another name, and refuses the right password."""
    firsts = []

    def authenticate(request: Any) -> dict[str, Any]:
        firsts.append(bytes(request.auth_bytes))
        return {"error_code": 58, "error_message": "no"}

    async with FakeBroker(sasl_handlers("SCRAM-SHA-256", authenticate)) as broker:
        security = {**plain("s3cret"), "sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "CN=svc,OU==2C"}
        with pytest.raises(BrokersUnavailable):
            await asyncio.wait_for(KafkaClient(broker.address, security=security).connect(300), 30)
    assert firsts[0].startswith(b"n,,n=CN=3Dsvc=2COU=3D=3D2C,r=")


@pytest.mark.parametrize(
    ("first", "final", "why"),
    [
        (b"s=c2FsdA==,i=4095", b"", "the broker offers 4095 iterations of SCRAM-SHA-256; 4096 is the least"),
        (b"s=c2FsdA==,i=-1", b"", "the broker offers -1 iterations"),
        (b"s=c2FsdA==,i=4096", b"e=invalid-proof", "the broker ends the login: invalid-proof"),
        (b"s=c2FsdA==,i=4096", b"x=y", r"does not prove its identity by SCRAM-SHA-256: KeyError\('v'\)"),
        (b"i=4096", b"", r"does not prove its identity by SCRAM-SHA-256: KeyError\('s'\)"),
    ],
    ids=range(5),
)
async def test_a_scram_login_that_the_broker_spoils_is_refused_with_the_reason(
    first: bytes, final: bytes, why: str
) -> None:
    """A server that offers few iterations gets no proof, from which it could guess the password."""
    proofs = []

    def authenticate(request: Any) -> dict[str, Any]:
        message = bytes(request.auth_bytes)
        if message.startswith(b"n,,"):
            return {"auth_bytes": b"r=" + message.rpartition(b"r=")[2] + b"x," + first}
        proofs.append(message)
        return {"auth_bytes": final}

    async with FakeBroker(sasl_handlers("SCRAM-SHA-256", authenticate)) as broker:
        security = {**plain("s3cret"), "sasl_mechanism": "SCRAM-SHA-256"}
        with pytest.raises(BrokersUnavailable, match=why) as caught:
            await asyncio.wait_for(KafkaClient(broker.address, security=security).connect(2), 60)
    assert not caught.value.retriable
    assert bool(proofs) is bool(final)


async def test_an_invalid_host_name_is_named() -> None:
    with pytest.raises(BrokersUnavailable, match="not a valid host name"):
        await KafkaClient(f"{'x' * 70}:9092").connect(0.5)
