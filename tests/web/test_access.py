"""Permissions over HTTP: users from a proxy, the audit log, TLS. With generated groups."""

from __future__ import annotations

import contextlib
import json
import shutil
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Optional

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry
from tornado.httpclient import AsyncHTTPClient

from allocator.cli.commands import main
from allocator.errors import ConfigError
from allocator.web.guard import Guard, Login, User
from allocator.web.history_file import HistoryFile
from allocator.web.records import RecordsPage
from allocator.web.server import Site, serve
from tests.security.certificates import Certificates
from tests.web.generated_groups import watcher_of
from tests.web.served import TOKEN, Served, as_described

LOGIN = Login("X-User", "X-Groups", operators=frozenset({"alice", "@ops"}), viewers=frozenset({"bob", "@dev"}))
ALICE, BOB, EVE = {"X_User": "alice"}, {"X_User": "bob"}, {"X_User": "eve"}


async def pause(group: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
    if "oops" in given:
        raise ConfigError("oops is not known here")
    return {"group": group, "executed": given.get("confirm") == group}


@contextlib.asynccontextmanager
async def site(
    login: Optional[Login] = None,
    token: Optional[str] = None,
    archive: Optional[HistoryFile] = None,
    tls: Optional[ssl.SSLContext] = None,
    records: Optional[RecordsPage] = None,
) -> AsyncIterator[Served]:
    watcher = watcher_of(groups=1, members=3, partitions=12)
    guard = Guard.make(token=token, login=login)
    found = Site(
        guard, CollectorRegistry(), watcher=watcher, actions={"pause": pause}, archive=archive, tls=tls, records=records
    )
    async with serve(found) as port:
        yield Served(port, watcher)


@pytest.mark.parametrize(
    ("headers", "address", "user"),
    [
        ({"X-User": "alice"}, "127.0.0.1", User("alice", "operator")),
        ({"X-User": "carol", "X-Groups": "dev, ops"}, "127.0.0.1", User("carol", "operator")),
        ({"X-User": "carol", "X-Groups": "dev"}, "127.0.0.1", User("carol", "viewer")),
        ({"X-User": "eve"}, "127.0.0.1", User("eve", "")),
        ({"X-User": "@ops"}, "127.0.0.1", User("@ops", "")),
        ({"X-User": "alice"}, "10.0.0.9", None),
        ({}, "127.0.0.1", None),
    ],
)
def test_the_role_of_a_user(headers: dict[str, str], address: str, user: Optional[User]) -> None:
    assert LOGIN.user(headers, address) == user


@pytest.mark.parametrize(
    ("proxy", "address"),
    [("2001:DB8::0:1", "2001:db8::1"), ("10.0.0.9", "::ffff:10.0.0.9"), ("0:0:0:0:0:0:0:1", "::1")],
)
def test_a_proxy_is_known_by_its_address_however_it_is_written(proxy: str, address: str) -> None:
    login = Login("X-User", proxies=frozenset({proxy}), operators=frozenset({"alice"}))
    assert login.user({"X-User": "alice"}, address) == User("alice", "operator")
    assert login.user({"X-User": "alice"}, "2001:db8::2") is None


def test_a_login_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="X User"):
        Login("X User")
    with pytest.raises(ConfigError, match=r"proxy\.example"):
        Login("X-User", proxies=frozenset({"proxy.example"}))


async def test_users_of_the_proxy_are_limited_to_their_role_and_audited(tmp_path: Path) -> None:
    archive = HistoryFile(tmp_path / "h.sqlite", 10_000_000)
    async with site(LOGIN, archive=archive) as it:
        path = "/api/groups/billing/pause"
        for viewed in ("/", "/page.js", "/api/groups", "/api/events", "/api/groups/billing"):
            assert (await it.request(viewed)).code == 401, viewed
            assert (await it.request(viewed, **EVE)).code == 403, viewed
        assert (await it.request("/metrics")).code == 200, "Prometheus does not log in"
        assert (await it.request("/health/live")).code == 200
        assert (await it.json("/api/groups", **BOB))["read_only"] is True
        assert (await it.json("/api/groups", **ALICE))["read_only"] is False
        assert (await it.request(path, {}, **BOB)).code == 403
        assert (await it.request(path, "", method="POST", Content_Type="text/plain", **ALICE)).code == 415
        assert (await it.request(path, {}, Origin="http://evil.example.org", **ALICE)).code == 403
        assert (await it.request(path, {"oops": 1}, **ALICE)).code == 400
        assert (await it.request(path, {}, **ALICE)).code == 200, "a plan"
        assert (await it.request(path, {"confirm": "billing"}, **ALICE)).code == 200
        assert (await it.request("/api/audit", **BOB)).code == 403
        audit = await it.json("/api/audit", **ALICE)
        as_described("/api/audit", audit)
        (change,) = audit["changes"]
        assert (change["who"], change["text"], change["group"]) == ("alice", "pause", "billing")
        assert change["detail"] == {"request": {"confirm": "billing"}, "outcome": "done"}
    archive.close()


async def test_the_history_is_returned_with_and_without_a_file(tmp_path: Path) -> None:
    for archive in (None, HistoryFile(tmp_path / "h.sqlite", 10_000_000)):
        async with site(archive=archive) as it:
            found = await it.json("/api/groups/billing/history?from=1000")
            as_described("/api/groups/{group}/history", found)
            assert len(found["rebalances"]) == 2
            for wrong in ("from=soon", "from=nan", "from=5&to=4", "to=-1"):
                assert (await it.request(f"/api/groups/billing/history?{wrong}")).code == 400, wrong
            rebalance = found["rebalances"][0]
            as_described(
                "/api/groups/{group}/rebalances/{id}",
                await it.json(f"/api/groups/billing/rebalances/{rebalance['id']}"),
            )
            assert (await it.request("/api/groups/billing/rebalances/17")).code == 404
            as_described("/api/groups/{group}/offsets", await it.json("/api/groups/billing/offsets"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to create a certificate")
def test_an_encrypted_key_is_refused_without_a_prompt(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificates.make("page", password="geheim")
    options = ["--tls-cert", str(certificates.certificate("page")), "--tls-key", str(certificates.key("page"))]
    done = CliRunner().invoke(main, ["web", "--zookeeper", "127.0.0.1:1", *options])
    assert done.exit_code == 2
    assert "is encrypted" in done.output


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to create a certificate")
async def test_it_serves_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificates.make("page")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates.certificate("page"), certificates.key("page"))
    async with site(token=TOKEN, tls=tls) as it:
        client = AsyncHTTPClient(force_instance=True)
        url = f"https://localhost:{it.port}/api/groups"
        response = await client.fetch(
            url, ca_certs=str(certificates.ca), headers={"Origin": f"https://localhost:{it.port}"}
        )
        assert json.loads(response.body)["ready"] is True
        with pytest.raises(OSError, match=r"reset|closed"):
            await it.request("/api/groups")
