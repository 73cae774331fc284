"""Connections to a broker through an HTTP or SOCKS 5 proxy."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kafka.protocol.metadata import FindCoordinatorRequest

from allocator.core.client.client import KafkaClient
from allocator.core.client.proxy import Proxy
from allocator.core.client.security import check_security
from allocator.errors import BrokersUnavailable, ConfigError
from allocator.testing import wait_until_async
from tests.client.fake_broker import FakeBroker
from tests.client.fake_proxy import FakeProxy


@contextlib.asynccontextmanager
async def broker_behind(login: tuple[str, str] | None = None) -> AsyncIterator[tuple[FakeBroker, FakeProxy]]:
    async with FakeBroker() as broker, FakeProxy(login) as proxy:
        broker.host = "localhost"
        yield broker, proxy


def url(scheme: str, proxy: FakeProxy, login: str = "") -> dict[str, str]:
    return {"proxy_url": f"{scheme}://{login}127.0.0.1:{proxy.port}"}


SCHEMES = ["http", "socks5", "socks5h"]


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_requests_go_through_the_proxy(scheme: str) -> None:
    async with broker_behind() as (broker, proxy):
        async with KafkaClient(f"localhost:{broker.port}", security=url(scheme, proxy)) as client:
            assert (await client.send(1, FindCoordinatorRequest(key="g", max_version=3))).error_code == 0
        # the proxy resolves names, but with "socks5" this process does
        hosts = {"127.0.0.1", "::1"} if scheme == "socks5" else {"localhost"}
        assert {target.rpartition(":")[0] for target in proxy.targets} <= hosts
        assert proxy.targets
        await wait_until_async(lambda: proxy.open == 0, 30, "the connections to the proxy are closed")


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_the_login_in_the_url_is_decoded(scheme: str) -> None:
    async with broker_behind(login=("ada", "p@ss:wört")) as (broker, proxy):
        security = url(scheme, proxy, "ada:p%40ss%3Aw%C3%B6rt@")
        async with KafkaClient(f"localhost:{broker.port}", security=security) as client:
            assert client.broker_version


@pytest.mark.parametrize(
    "bound", [b"\x03\x05proxy\0\x07", b"\x04" + bytes(16) + b"\0\x07"], ids=["a name", "an IPv6 address"]
)
async def test_any_address_of_the_proxys_own_socket_is_accepted(bound: bytes) -> None:
    async with broker_behind() as (broker, proxy):
        proxy.bound = bound
        async with KafkaClient(f"localhost:{broker.port}", security=url("socks5h", proxy)) as client:
            assert client.broker_version


@pytest.mark.parametrize(
    ("scheme", "login", "settings", "message"),
    [
        ("http", "", {"refusal": "403 Forbidden"}, "does not connect to localhost:9: .*403"),
        ("socks5h", "", {"refusal": 2}, "localhost:9: not allowed by its rules"),
        ("socks5h", "", {"refusal": 77}, "localhost:9: error 77"),
        ("socks5", "", {"refusal": 5}, "127.0.0.1:9: connection refused"),
        ("http", "ada:wrong@", {"login": ("ada", "right")}, "407"),
        ("http", "ada:wrong%2B1@", {"refusal": "403 wrong+1 is wrong+1"}, "localhost:9: .*403 \\*\\*\\* is"),
        ("http", "ada:wrong@", {"refusal": "403 Basic YWRhOndyb25n"}, r"localhost:9: \*\*\*"),
        ("socks5", "ada:wrong@", {"login": ("ada", "right")}, "refuses the user or the pass"),
        ("socks5", "", {"login": ("ada", "right")}, "needs a login"),
        *((scheme, "", None, "fails: Connection refused") for scheme in SCHEMES),
    ],
)
async def test_a_failure_names_the_proxy_and_the_reason(
    scheme: str, login: str, settings: dict[str, Any] | None, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeProxy() as proxy:
        vars(proxy).update(settings or {})
        if settings is None:
            await proxy.close()
        with caplog.at_level(1), pytest.raises(BrokersUnavailable, match=message) as caught:
            await KafkaClient("localhost:9", security=url(scheme, proxy, login)).connect(1.5)
        assert f"proxy {scheme}://127.0.0.1:{proxy.port}" in str(caught.value)
        for secret in ("wrong", "YWRhOndyb25n"):
            assert secret not in str(caught.value) + caplog.text


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_silent_proxy_keeps_no_socket(scheme: str) -> None:
    async with FakeProxy() as proxy:
        proxy.silent = True
        with pytest.raises(BrokersUnavailable, match="no response within"):
            await KafkaClient("localhost:9", security=url(scheme, proxy)).connect(1.0)
        await wait_until_async(lambda: proxy.open == 0, 30, "the connections to the proxy are closed")


WRONG = ["ftp://u:s3cret@p:1", "p:3128", "http://u:s3cret@p", "socks5://:1", "http://u:s3cret@p:x", 5, ""]


@pytest.mark.parametrize("given", WRONG)
def test_a_wrong_url_is_refused_before_the_first_connection(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"proxy_url is not a proxy's URL.*socks5h://") as caught:
        check_security({"proxy_url": given})
    assert "s3cret" not in str(caught.value)


def test_no_text_of_a_proxy_has_its_password() -> None:
    proxy = Proxy.of("http://user:geheim@h:8080")
    assert proxy.password == "geheim"
    for text in (repr(proxy), str(proxy), repr([proxy])):
        assert "geheim" not in text
        assert "8080" in text
