"""Token providers by name and token endpoints: requests, errors, and secrets that stay hidden."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import logging
import re
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote_plus

import pytest

from allocator.core.client import sasl
from allocator.core.client.client import KafkaClient
from allocator.core.client.errors import ConnectionFailed
from allocator.core.client.masking import quoted
from allocator.core.client.oauth import ClientCredentials, TokenError, TokenProvider, with_credentials
from allocator.core.client.sasl import Sasl
from allocator.core.client.security import check_security
from allocator.core.settings.names import url_origin
from allocator.errors import BrokersUnavailable, ConfigError
from allocator.testing import wait_until_async
from tests.client import providers_under_test
from tests.client.fake_broker import FakeBroker, find, sasl_handlers
from tests.client.token_endpoint import CLIENT_ID, CLIENT_SECRET, TokenEndpoint, granted, unsecured_token
from tests.constants import SetConstant

PROVIDERS = providers_under_test.__name__
OAUTH = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}


def oauth_broker(tokens: list[bytes], refused: int = 0, lifetime_ms: int = 0) -> FakeBroker:
    """Returns a broker that records the tokens, and refuses the first ones."""

    def authenticate(request: Any) -> dict[str, Any]:
        tokens.append(bytes(request.auth_bytes))
        return {"error_code": 58 if len(tokens) <= refused else 0, "session_lifetime_ms": lifetime_ms}

    return FakeBroker(sasl_handlers("OAUTHBEARER", authenticate))


def provider_of(settings: dict[str, Any]) -> TokenProvider:
    provider = with_credentials(check_security({**OAUTH, **settings}))["sasl_oauth_token_provider"]
    assert isinstance(provider, TokenProvider)
    return provider


# -- by name ----------------------------------------------------------------------------------------------------------


async def test_a_provider_by_name_is_created_once_for_all_clients() -> None:
    tokens: list[bytes] = []
    security = {**OAUTH, "sasl_oauth_token_provider": f"{PROVIDERS}:Provider"}
    before = len(providers_under_test.created)
    async with oauth_broker(tokens) as broker:
        for _ in range(2):
            async with KafkaClient(broker.address, security=security) as client:
                assert (await client.send(1, find())).error_code == 0
    assert len(providers_under_test.created) - before <= 1
    assert tokens
    assert all(token.startswith(b"n,,\x01auth=Bearer ey") for token in tokens)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "sasl_oauth_token_provider with sasl_oauth_token_endpoint: OAUTHBEARER needs exactly one of them"),
        ({"sasl_oauth_token_provider": "no_such_module:f"}, "'no_such_module:f': module 'no_such_module' cannot be"),
        ({"sasl_oauth_token_provider": f"{PROVIDERS}:Provder"}, "has no 'Provder'; did you mean 'Provider'"),
        ({"sasl_oauth_token_provider": PROVIDERS}, "write 'package.module:function'"),
        ({"sasl_oauth_token_provider": f"{PROVIDERS}:of_environment"}, "KeyError.'VAULT_ADDRESS_OF_TEST'"),
        ({"sasl_oauth_token_provider": "builtins:dict"}, "token provider 'builtins:dict': dict has no method token"),
        ({"sasl_oauth_token_provider": 5}, r"token provider int: int has no method token"),
        (
            {"sasl_oauth_token_endpoint": "https://i/t", "sasl_oauth_client_id": "b"},
            "sasl_oauth_client_secret: the end",
        ),
        ({"sasl_oauth_token_provider": "a:b", "sasl_oauth_client_id": "b"}, "no effect without a token endpoint"),
        ({"sasl_mechanism": "PLAIN", "sasl_oauth_token_provider": "a:b"}, 'only "OAUTHBEARER" uses it'),
        ({"sasl_mechanism": "AWS_MSK_IAM"}, "sasl_mechanism with security_protocol: AWS_MSK_IAM needs SASL_SSL"),
    ],
)
async def test_settings_without_a_valid_provider_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await KafkaClient("127.0.0.1:1", security={**OAUTH, **settings}).connect(1)


async def test_a_mechanism_that_hangs_keeps_one_thread_after_many_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(
        "allocator.core.client.sasl.get_sasl_mechanism",
        lambda name: lambda **settings: SimpleNamespace(auth_bytes=go_on.wait, is_done=lambda: False),
    )

    async def send(request: Any, timeout_s: float) -> Any:
        return SimpleNamespace(error_code=0, mechanisms=["GSSAPI"], API_VERSION=1)

    def threads() -> int:
        return sum(each.name == "allocator-sasl" for each in threading.enumerate())

    before, turn = threads(), threading.Lock()
    for _ in range(5):
        with pytest.raises(ConnectionFailed, match="no credentials for GSSAPI within"):
            await Sasl("h", {"sasl_mechanism": "GSSAPI"}, turn, send).authenticate(0.05)
    await wait_until_async(lambda: threads() <= before + 1, 10, "the end of the other threads")
    go_on.set()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("failing", r": KeyError\('token'\)"),
        ("refused", rf': ConnectionRefusedError\(111, "{re.escape(providers_under_test.REFUSED)}"\)'),
        ("hanging", " yet"),
        ("Coroutine", r": token\(\) returned coroutine; it must be a plain function that returns str"),
    ],
)
async def test_a_provider_that_fails_or_hangs_is_a_retriable_error_that_names_it(name: str, why: str) -> None:
    security = {**OAUTH, "sasl_oauth_token_provider": f"{PROVIDERS}:{name}"}
    async with oauth_broker([]) as broker:
        where = f"no credentials for OAUTHBEARER from token provider '{PROVIDERS}:{name}'"
        with pytest.raises(BrokersUnavailable, match=where + why) as caught:
            await KafkaClient(broker.address, security=security).connect(0.5)
        assert caught.value.retriable


@pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
async def test_a_provider_that_raises_what_ends_programs_is_named_with_it(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[object] = []
    monkeypatch.setattr("threading.excepthook", left.append)
    provider = providers_under_test.Provider()

    def end() -> str:
        raise kind

    provider.make = end
    async with oauth_broker([]) as broker:
        security = {**OAUTH, "sasl_oauth_token_provider": provider}
        with pytest.raises(BrokersUnavailable, match=rf"token provider Provider: {kind.__name__}\(\)"):
            await KafkaClient(broker.address, security=security).connect(0.5)
    assert left == []


TOKENS = (
    "short",
    "tok-VERYSECRET-oauth",
    "0123456789abcdef01234567",
    "eyJh.eyJz.c2ln",
    "ya29.A0ARrdaM-k9Zc81Lb",
    unsecured_token(),
)


@pytest.mark.parametrize("token", TOKENS, ids=range(6))
@pytest.mark.parametrize("form", ["{}", "Bearer {}", "x" * 280 + " {}"])
async def test_a_broker_that_quotes_the_token_does_not_get_it_into_the_error(
    token: str, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in the JSON of RFC 7628, which the broker sends before it refuses the login."""
    caplog.set_level(1)
    provider, said = providers_under_test.Provider(), form.format(token)
    provider.make = lambda: token

    def authenticate(request: Any) -> dict[str, Any]:
        if bytes(request.auth_bytes) == b"\x01":
            return {"error_code": 58, "error_message": said}
        return {"auth_bytes": json.dumps({"status": said}).encode()}

    async with FakeBroker(sasl_handlers("OAUTHBEARER", authenticate)) as broker:
        security = {**OAUTH, "sasl_oauth_token_provider": provider}
        with pytest.raises(BrokersUnavailable, match="correct the credentials") as caught:
            await asyncio.wait_for(KafkaClient(broker.address, security=security).connect(300), 30)
    assert token not in str(caught.value) + caplog.text


@pytest.mark.parametrize("token", TOKENS[1:], ids=range(1, 6))
@pytest.mark.parametrize("form", ["no {}", "Authorization: Bearer {}", "/v1/{}?x", "x" * 280 + " {}"])
async def test_a_token_that_the_error_of_a_provider_quotes_is_masked(
    token: str, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    provider = providers_under_test.Provider()

    def fail() -> str:
        raise OSError(2, f"/etc/vault/ca.pem: {form.format(token)}")

    provider.make = fail
    async with oauth_broker([]) as broker:
        security = {**OAUTH, "sasl_oauth_token_provider": provider}
        with pytest.raises(
            BrokersUnavailable, match=r"Provider: FileNotFoundError\(2, '/etc/vault/ca\.pem: "
        ) as caught:
            await KafkaClient(broker.address, security=security).connect(0.5)
    seen = str(caught.value) + caplog.text
    for part in (token, token[:16]):
        assert part not in seen


async def test_requests_continue_while_credentials_are_renewed(
    set_constant: SetConstant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider fails once when the session must be renewed, then hangs; the same connection responds meanwhile."""
    set_constant(sasl, CREDENTIALS_PAUSE_S=0.01)
    tokens: list[bytes] = []
    provider = providers_under_test.Provider()
    hangs, go_on = threading.Event(), threading.Event()

    def fail() -> str:
        provider.make = hang
        raise LookupError("away")

    def hang() -> str:
        hangs.set()
        assert go_on.wait(60)
        return "renewed"

    async with oauth_broker(tokens, lifetime_ms=3_000_000) as broker:
        # renews the session at once, long before it expires
        monkeypatch.setattr("random.uniform", lambda low, high: 1e-6 if low == 0.85 else (low + high) / 2)
        security = {**OAUTH, "sasl_oauth_token_provider": provider}
        async with KafkaClient(broker.address, security=security) as client:
            provider.make = fail
            await asyncio.to_thread(hangs.wait, 60)
            connections = broker.connections
            assert (await asyncio.wait_for(client.send(1, find()), 30)).error_code == 0
            assert not any(b"renewed" in token for token in tokens)
            go_on.set()
            while not any(b"renewed" in token for token in tokens):
                assert (await client.send(1, find())).error_code == 0
            assert broker.connections == connections


# -- the token endpoint -----------------------------------------------------------------------------------------------


def test_a_token_is_requested_by_client_credentials_and_kept() -> None:
    with TokenEndpoint() as endpoint:
        settings = {**endpoint.settings(), "sasl_oauth_scope": "kafka read"}
        tokens = {provider_of(settings).token() for _ in range(3)}
        assert len(tokens) == 1
        form = {"grant_type": ["client_credentials"], "scope": ["kafka read"]}
        assert endpoint.requests == [(CLIENT_ID, CLIENT_SECRET, form)]


def test_a_token_is_renewed_early_and_used_until_it_expires_if_the_endpoint_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ahead, real = [0.0], time.time
    with TokenEndpoint() as endpoint:
        provider = provider_of(endpoint.settings())
        first = provider.token()
        monkeypatch.setattr("time.time", lambda: real() + ahead[0])
        ahead[0] = 0.7 * 3600
        assert provider.token() == first
        ahead[0] = 0.81 * 3600
        endpoint.respond = lambda: (503, {}, "")
        assert provider.token() == first
        assert (
            f"token endpoint {url_origin(endpoint.url)}: it responds 503: Service Unavailable; the last token is"
            in caplog.text
        )
        endpoint.respond = granted
        second = provider.token()
        assert second != first
        ahead[0] = 2 * 3600
        endpoint.respond = lambda: (503, {}, "")
        with pytest.raises(Exception, match="503"):
            provider.token()


def test_a_token_without_a_lifetime_is_used_once() -> None:
    with TokenEndpoint() as endpoint:
        endpoint.respond = lambda: (200, {}, f'{{"access_token": "{unsecured_token()}"}}')
        provider = provider_of(endpoint.settings())
        assert provider.token() != provider.token()


async def test_a_token_that_the_broker_refuses_is_not_sent_again() -> None:
    tokens: list[bytes] = []
    with TokenEndpoint() as endpoint:
        async with oauth_broker(tokens, refused=1) as broker:
            security = {**OAUTH, **endpoint.settings()}
            with pytest.raises(BrokersUnavailable, match="correct the credentials"):
                await KafkaClient(broker.address, security=security).connect(30)
            async with KafkaClient(broker.address, security=security):
                pass
    assert len(set(tokens[:2])) == 2


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (400, '{"error": "invalid_scope", "error_description": "no \\u001b x"}', r"400: invalid_scope: no \\x1b x"),
        (401, f'{{"error": "invalid_client", "error_description": "{CLIENT_SECRET}?"}}', "invalid_client: ...\\?"),
        (302, "", "it responds 302: Found"),
        (200, "<html>", "its response has no access_token of"),
        (200, '{"access_token": "a\\u0001b"}', "its response has no access_token of"),
        (200, '{"access_token": "a", "token_type": "mac"}', "its response has no access_token of token_type Bearer"),
        (200, '{"access_token": "a", "expires_in": "soon"}', "expires_in that is not a number"),
        (200, "x" * (2 << 20), "no response: "),
        (0, "", "no response: .*refused"),
    ],
    ids=range(9),
)
async def test_an_endpoint_that_fails_is_named_and_the_secret_is_not(
    status: int, body: str, why: str, caplog: pytest.LogCaptureFixture, unused_port: int
) -> None:
    caplog.set_level(1)
    logging.getLogger("allocator").setLevel(1)
    with TokenEndpoint() as endpoint:
        endpoint.respond = lambda: (status, {"Location": "http://127.0.0.1:1/"} if status == 302 else {}, body)
        url = endpoint.url if status else f"http://127.0.0.1:{unused_port}/t"
        async with oauth_broker([]) as broker:
            security = {**OAUTH, **endpoint.settings(), "sasl_oauth_token_endpoint": url}
            client = KafkaClient(broker.address, security=security)
            with pytest.raises(
                BrokersUnavailable, match=f"from token endpoint {re.escape(url_origin(url))}: .*{why}"
            ) as caught:
                await client.connect(0.5 if status else 5)
            assert caught.value.retriable
        assert CLIENT_SECRET not in str(caught.value) + caplog.text + repr(client)
        assert bool(endpoint.requests) is bool(status)


@pytest.mark.parametrize("scheme", ["http", "HTTP"])
async def test_a_key_in_the_query_of_the_endpoint_is_sent_and_never_shown(
    caplog: pytest.LogCaptureFixture, unused_port: int, scheme: str
) -> None:
    caplog.set_level(1)
    async with oauth_broker([]) as broker:
        with TokenEndpoint() as endpoint:
            url = f"{scheme}://127.0.0.1:{unused_port}/t?key=k3y-of-query"
            security = {**OAUTH, **endpoint.settings(), "sasl_oauth_token_endpoint": url}
        with pytest.raises(BrokersUnavailable) as caught:
            await KafkaClient(broker.address, security=security).connect(5)
    assert f"from token endpoint {scheme}://127.0.0.1/***: " in str(caught.value)
    assert "k3y-of-query" not in str(caught.value) + caplog.text


HEADER = base64.b64encode(f"{quote_plus(CLIENT_ID)}:{quote_plus(CLIENT_SECRET)}".encode()).decode()


@pytest.mark.parametrize(
    "said",
    [
        f"cannot verify Basic {HEADER}",
        f"cannot verify {HEADER[:-8]}...",
        f"Authorization=Basic%20{quote_plus(HEADER)}",
        "x" * 190 + CLIENT_SECRET,
        quote_plus(CLIENT_SECRET).lower(),
        json.dumps({"secret": CLIENT_SECRET}),
    ],
)
def test_an_endpoint_that_quotes_the_request_does_not_get_the_secret_into_the_error(said: str) -> None:
    with TokenEndpoint() as endpoint:
        body = json.dumps({"error": "invalid_client", "error_description": said})
        endpoint.respond = lambda: (401, {}, body)
        with pytest.raises(TokenError, match="it responds 401: invalid_client: ") as caught:
            ClientCredentials(endpoint.url, CLIENT_ID, CLIENT_SECRET, None).token()
    shown = str(caught.value)
    encoded = re.findall(r"[A-Za-z0-9+/]{8,}", shown)
    shown += "".join(base64.b64decode(each[: len(each) // 4 * 4]).decode(errors="replace") for each in encoded)
    for form in (CLIENT_SECRET, quote_plus(CLIENT_SECRET)):
        assert form[:6].lower() not in shown.lower()


def test_a_secret_is_masked_in_the_json_and_html_of_any_language_and_no_letter_is_spelled() -> None:
    secret = 'pässwort<"7">&\'x'
    in_json = json.dumps(secret, ensure_ascii=False)
    of_go = in_json.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
    for form in (in_json, of_go, html.escape(secret).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")):
        assert "7" not in quoted(f"cannot use {form}", [secret])
    assert quoted("Authentication failed", ["e"]) == "Authentication failed"


@pytest.mark.parametrize("secrets", [["pass", "passport-Secret-99"], ["passport-Secret-99", "pass"]])
def test_a_secret_that_is_a_part_of_another_one_leaves_no_rest_of_it(secrets: list[str]) -> None:
    assert quoted("token passport-Secret-99 refused, pass", secrets) == "token *** refused, ***"


@pytest.mark.parametrize("secret", ["a\"b'c\\d<7>&f", "first 7\nsecond\n", "ab+cd/ef7==gh", "pässwörd7", "pw😀secret7"])
@pytest.mark.parametrize(
    "escaped",
    [
        lambda secret: repr(ValueError(f"bad {secret!r}")),
        lambda secret: json.dumps(json.dumps(secret)),
        lambda secret: json.dumps(secret).replace("/", "\\/"),
        lambda secret: "".join(f"%{each:02x}" for each in secret.encode()),
        lambda secret: quote_plus(quote_plus(secret)),
        lambda secret: "".join(f"&#{ord(each)};" for each in secret),
        lambda secret: base64.b64encode(f"x:{secret}".encode()).decode().replace("/", "\\/"),
    ],
    ids=["repr in repr", "JSON in JSON", "escaped slash", "each byte in a URL", "URL in URL", "HTML", "base64 in JSON"],
)
def test_a_secret_is_masked_in_escapes_that_no_library_writes_or_that_are_escaped_again(
    secret: str, escaped: Callable[[str], str]
) -> None:
    form = escaped(secret)
    assert form[1:-1] not in quoted(f"the broker refuses {form}", [secret])
    assert "***" in quoted(f"the broker refuses {form}", [secret])
    assert quoted(f"the broker refuses {escaped('another text')}", [secret]) != "***"


@pytest.mark.parametrize("part", ["1/", "Aa", "Aa1-", "Ab/1", "&amp;", "%25", "\\", "\\u0041", "%e4a", "eyJ", "a1"])
def test_a_huge_text_is_masked_in_a_time_that_its_size_bounds(part: str) -> None:
    """A quadratic search would take hours for it."""
    assert quoted(part * (1 << 19), ["s3cret-of-another"], guess=True)


@pytest.mark.parametrize(
    "said",
    [
        "name or service not known: keycloak-production-1.svc.cluster.local",
        "host='vault-prod-eu-west-1.example.com', port=8200",
        "KeyError('KAFKA_OAUTH2_CLIENT_SECRET')",
        "OAuth2ClientCredentialsError('invalid_client')",
        "arn:aws:iam::123456789012:role/BillingServiceRole2024",
        "arn:aws:iam::123456789012:role/billing-producer-2026",
        "Trace ID: 7b3e1c2a-5d4f-4a6b-9c8d-0e1f2a3b4c5d",
    ],
)
def test_names_of_hosts_classes_and_variables_are_no_tokens(said: str) -> None:
    assert quoted(said, (), guess=True) == said


@pytest.mark.parametrize(
    "token",
    [
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",  # a secret key of AWS
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "s3cret-Of-9xQ2vBn7Lk",
        "0123456789abcdef01234567",
    ],
)
def test_what_looks_like_a_token_is_masked(token: str) -> None:
    assert quoted(f"login with '{token}' failed", (), guess=True) == "login with '***' failed"


@pytest.mark.parametrize("said", ["Cannot POST {}", "no such key: k3y-of-path", "unknown k3y-of-query", "see {}!"])
def test_an_endpoint_that_quotes_its_url_does_not_get_a_key_into_the_error(said: str) -> None:
    target = "/t/k3y-of-path/token?v=1&key=k3y-of-query"
    with TokenEndpoint() as endpoint:
        endpoint.respond = lambda: (
            404,
            {},
            json.dumps({"error": "not_found", "error_description": said.format(target)}),
        )
        url = endpoint.url.rpartition("/")[0] + target
        with pytest.raises(TokenError, match="it responds 404: not_found: ") as caught:
            ClientCredentials(url, CLIENT_ID, CLIENT_SECRET, None).token()
    assert "k3y" not in str(caught.value)


def test_tls_of_the_endpoint_is_verified(
    server_context: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TokenEndpoint(server_context) as endpoint:
        provider = provider_of(endpoint.settings())
        with pytest.raises(Exception, match=r"no response: .*(?i:certificate)"):
            provider.token()
        assert endpoint.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "ca.pem"))
        assert provider.token()


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://login.example/tenant/oauth2/v2.0/token?p=1", True),
        ("http://localhost:8080/token", True),
        ("http://[::1]/token", True),
        ("http://login.example/token", False),
        ("http://localhost.example/token", False),
        ("https://user:s3cret@login.example/token", False),
        ("https:///token", False),
        ("ftp://login.example/token", False),
        ("https://login.example:x/token", False),
        ("", False),
    ],
)
def test_a_secret_is_sent_over_tls_or_to_this_machine(url: str, allowed: bool) -> None:
    settings = {**OAUTH, "sasl_oauth_token_endpoint": url, "sasl_oauth_client_id": "b", "sasl_oauth_client_secret": "c"}
    if allowed:
        assert check_security(settings) == settings
        return
    with pytest.raises(ConfigError, match="sasl_oauth_token_endpoint") as caught:
        check_security(settings)
    assert "s3cret" not in str(caught.value)
