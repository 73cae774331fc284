"""AWS_MSK_IAM without AWS: the broker gets a message with the signature that botocore computes."""

from __future__ import annotations

import json
import ssl
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from kafka.protocol.metadata import FindCoordinatorRequest

from allocator.core.client.client import KafkaClient
from allocator.errors import BrokersUnavailable, MissingExtra
from tests.client.fake_broker import FakeBroker, sasl_handlers

MSK = {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM"}
KEY, SECRET, SESSION = "AKIDEXAMPLE", "iam-s3cret/Wq8", "session+token/="


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Removes the AWS credentials of this machine, and the search for a role."""
    for name in (
        "AWS_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_DEFAULT_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def msk_broker(messages: list[bytes], tls: ssl.SSLContext) -> FakeBroker:
    def authenticate(request: Any) -> dict[str, Any]:
        messages.append(bytes(request.auth_bytes))
        return {"auth_bytes": b'{"version":"2020_10_22"}'}

    broker = FakeBroker(sasl_handlers("AWS_MSK_IAM", authenticate), tls=tls)
    broker.host = "localhost"
    return broker


def signature(message: dict[str, str]) -> str:
    """The signature that botocore computes for the same request."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    query = {"Action": message["action"], "X-Amz-Algorithm": message["x-amz-algorithm"]}
    for name in ("Credential", "Date", "Expires", "Security-Token", "SignedHeaders"):
        query[f"X-Amz-{name}"] = message[f"x-amz-{name.lower()}"]
    request = AWSRequest(method="GET", url=f"https://{message['host']}/?{urlencode(query)}")
    request.context["timestamp"] = message["x-amz-date"]
    auth = SigV4Auth(Credentials(KEY, SECRET, SESSION), "kafka-cluster", "eu-west-1")
    signed: str = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    return signed


async def test_the_broker_gets_a_request_that_iam_can_verify(
    server_context: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("botocore")
    caplog.set_level(1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    messages: list[bytes] = []
    async with msk_broker(messages, server_context) as broker:
        security = {**MSK, "ssl_cafile": str(certificate / "ca.pem")}
        async with KafkaClient(f"localhost:{broker.port}", security=security) as client:
            assert (await client.send(1, FindCoordinatorRequest(key="g", max_version=3))).error_code == 0
    message = json.loads(messages[0])
    assert {name: message[name] for name in ("version", "host", "action", "x-amz-expires")} == {
        "version": "2020_10_22",
        "host": "localhost",
        "action": "kafka-cluster:Connect",
        "x-amz-expires": "900",
    }
    assert message["x-amz-credential"].startswith(f"{KEY}/")
    assert message["x-amz-credential"].endswith("/eu-west-1/kafka-cluster/aws4_request")
    assert message["x-amz-signature"] == signature(message)
    assert SECRET not in caplog.text
    assert SESSION not in caplog.text


@pytest.mark.parametrize(("key", "why"), [("", "NoneType"), (KEY, "region for AWS MSK")])
async def test_without_credentials_or_a_region_the_error_names_their_sources(
    server_context: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch, key: str, why: str
) -> None:
    pytest.importorskip("botocore")
    if key:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    async with msk_broker([], server_context) as broker:
        security = {**MSK, "ssl_cafile": str(certificate / "ca.pem")}
        text = f"no credentials for AWS_MSK_IAM from botocore .*AWS_.*~/.aws.*: .*{why}"
        with pytest.raises(BrokersUnavailable, match=text) as caught:
            await KafkaClient(f"localhost:{broker.port}", security=security).connect(5)
        assert caught.value.retriable


async def test_the_extra_is_named_before_anything_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(MissingExtra, match=r"zk-partition-allocator\[msk\]"):
        await KafkaClient("127.0.0.1:1", security=MSK).connect(1)
