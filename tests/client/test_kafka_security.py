"""Wrong settings are named, and their secrets stay hidden."""

from __future__ import annotations

import pytest

from allocator.core.client.client import KafkaClient
from allocator.core.client.pool import parse_addresses
from allocator.core.client.security import check_security, tls_context
from allocator.errors import BrokersUnavailable, ConfigError


class Tokens:
    def token(self) -> str:
        return "t"


SASL = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "u",
    "sasl_plain_password": "s3cret",
}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ssl_caflie": "x"}, "did you mean 'ssl_cafile'"),
        ({"sasl_password": "s3cret"}, "unknown setting 'sasl_password'"),
        ({"security_protocol": "SASL"}, "did you mean 'SASL_SSL'|did you mean 'SSL'"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism"),
        ({"sasl_plain_password": "s3cret"}, "no effect with security_protocol PLAINTEXT"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "ssl_cafile": "x"}, "ssl_cafile"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_security(settings)
    assert "s3cret" not in str(caught.value)


def test_a_certificate_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere/ca\.pem"):
        tls_context({"security_protocol": "SSL", "ssl_cafile": "/nowhere/ca.pem"})


@pytest.mark.parametrize(
    "brokers", ["", "a:b", "a:0", "a:70000", [], ["a:9092", ""], ":9092", "http://a:1", "a:1;b:2", "a:1/x", "u@a:1"]
)
def test_a_wrong_address_is_named(brokers: str) -> None:
    with pytest.raises(ConfigError, match="brokers"):
        KafkaClient(brokers)


def test_addresses_are_parsed_in_every_form() -> None:
    parsed = parse_addresses("a:1, b ,[::1]:2,10.0.0.1:3,PLAINTEXT://c:4")
    found = [(b.host, b.port) for b in parsed]
    assert [(b.host, b.port) for b in parse_addresses(",".join(b.address for b in parsed))] == found
    assert found == [("a", 1), ("b", 9092), ("::1", 2), ("10.0.0.1", 3), ("c", 4)]


@pytest.mark.parametrize("name", ["request_timeout_s", "metadata_max_age_s", "retry_backoff_s", "receive_max_bytes"])
@pytest.mark.parametrize("value", [0, -1, "3", True, None])
def test_a_number_out_of_range_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        KafkaClient("h:9092", **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({}, True),
        ({"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Tokens()}, True),
        ({"sasl_mechanism": "SCRAM-SHA-512"}, False),
        ({"security_protocol": "SASL_SSL"}, False),
    ],
)
async def test_an_unencrypted_password_is_warned_of(
    changes: dict[str, object], warned: bool, unused_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    client = KafkaClient(f"127.0.0.1:{unused_port}", security={**SASL, **changes})
    with pytest.raises(BrokersUnavailable):
        await client.connect(0.2)
    assert ("unencrypted" in caplog.text) is warned
    assert "s3cret" not in caplog.text


async def test_a_command_with_several_clients_warns_once_of_an_unencrypted_password(
    unused_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with pytest.raises(BrokersUnavailable):
            await KafkaClient(f"127.0.0.1:{unused_port}", security=SASL).connect(0.1)
    assert len([each for each in caplog.messages if "unencrypted" in each]) == 1
