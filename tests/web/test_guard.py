"""Access checks: host names, origins, tokens."""

from __future__ import annotations

import pytest

from allocator.errors import ConfigError
from allocator.web.guard import Guard, Login

TOKEN = "correct-horse-battery"


def test_only_the_names_of_the_server_are_known_hosts() -> None:
    guard = Guard.make(["status.example.org"])
    for known in ("localhost", "localhost:8180", "LOCALHOST:8180", "127.0.0.1:8180", "[::1]:8180", "10.1.2.3:8180"):
        assert guard.knows_host(known), known
    assert guard.knows_host("status.example.org")
    foreign = ("evil.example.org:8180", "localhost.evil.org", "127.0.0.1.evil.org", "localhost@evil.org")
    for header in (*foreign, "localhost:port", "localhost/x", "", None):
        assert not guard.knows_host(header), header


def test_only_pages_of_this_server_have_its_origin() -> None:
    host = "localhost:8180"
    for origin, scheme in ((None, "http"), (f"http://{host}", "http"), (f"https://{host}", "https")):
        assert Guard().same_origin(origin, host, scheme), origin
    for origin, scheme in (
        *((f"https://{host}", "http"), (f"http://{host}", "https"), ("http://localhost:9999", "http")),
        *(
            ("http://evil.org", "http"),
            ("null", "http"),
            (f"file://{host}", "file"),
            ("http://[", "http"),
            ("", "http"),
        ),
    ):
        assert not Guard().same_origin(origin, host, scheme), origin


def test_only_the_token_allows_changes() -> None:
    guard = Guard.make(token=TOKEN)
    assert guard.allows(f"Bearer {TOKEN}")
    assert guard.allows(f"bearer {TOKEN}")
    for header in (f"Bearer {TOKEN}x", "Bearer ", f"Basic {TOKEN}", TOKEN, "Bearer tok\u00e9n", None):
        assert not guard.allows(header), header
        assert not Guard.make().allows(header)
    assert not Guard.make().allows(f"Bearer {TOKEN}")
    assert TOKEN not in repr(guard)


@pytest.mark.parametrize("token", ["", "short", "has a line\nbreak in it", "\u00fcber-lang-genug-ist-es-doch"])
def test_an_invalid_token_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        Guard.make(token=token)


def test_only_blanks_of_http_are_no_part_of_a_name() -> None:
    login = Login("X-Forwarded-User", "X-Groups", operators=frozenset({"alice", "@ops"}))

    def role(name: str, groups: str = "") -> str:
        found = login.user({"X-Forwarded-User": name, "X-Groups": groups}, "127.0.0.1")
        return "" if found is None else found.role

    assert role(" alice\t") == role("bob", "dev, ops ") == "operator"
    for name, groups in (("alice\xa0", ""), ("\x85alice", ""), ("bob", "ops\xa0"), ("bob", "dev,\u2003ops")):
        assert role(name, groups) != "operator", (name, groups)
