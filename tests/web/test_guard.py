"""Access checks: host names, origins, tokens."""

from __future__ import annotations

import pytest

from allocator.errors import ConfigError
from allocator.web.guard import Guard

TOKEN = "correct-horse-battery"


@pytest.mark.parametrize(
    ("header", "known"),
    [
        ("localhost", True),
        ("localhost:8180", True),
        ("LOCALHOST:8180", True),
        ("127.0.0.1:8180", True),
        ("[::1]:8180", True),
        ("10.1.2.3:8180", True),
        ("status.example.org", True),
        ("evil.example.org:8180", False),
        ("localhost.evil.org", False),
        ("127.0.0.1.evil.org", False),
        ("localhost@evil.org", False),
        ("localhost:port", False),
        ("localhost/x", False),
        ("", False),
        (None, False),
    ],
)
def test_only_names_of_ours_lead_here(header: str | None, known: bool) -> None:
    assert Guard.make(["status.example.org"]).knows_host(header) is known


@pytest.mark.parametrize(
    ("origin", "scheme", "same"),
    [
        (None, "http", True),
        ("http://localhost:8180", "http", True),
        ("https://localhost:8180", "http", False),
        ("https://localhost:8180", "https", True),
        ("http://localhost:8180", "https", False),
        ("http://localhost:9999", "http", False),
        ("http://evil.org", "http", False),
        ("null", "http", False),
        ("file://localhost:8180", "file", False),
        ("http://[", "http", False),
        ("", "http", False),
    ],
)
def test_only_pages_of_this_server_have_its_origin(origin: str | None, scheme: str, same: bool) -> None:
    assert Guard().same_origin(origin, "localhost:8180", scheme) is same


@pytest.mark.parametrize(
    ("header", "right"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer {TOKEN}", True),
        (f"Bearer {TOKEN}x", False),
        ("Bearer ", False),
        (f"Basic {TOKEN}", False),
        (TOKEN, False),
        ("Bearer tok\u00e9n", False),
        (None, False),
    ],
)
def test_only_the_token_allows_changes(header: str | None, right: bool) -> None:
    assert Guard.make(token=TOKEN).allows(header) is right
    assert not Guard.make().allows(header)


@pytest.mark.parametrize("token", ["", "short", "has a line\nbreak in it", "\u00fcber-lang-genug-ist-es-doch"])
def test_a_token_that_is_none_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        Guard.make(token=token)


@pytest.mark.parametrize("host", ["http://x", "x:80", "x/y", ""])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="host name"):
        Guard.make([host])


def test_the_token_is_not_shown() -> None:
    assert TOKEN not in repr(Guard.make(token=TOKEN))
