"""Access rules: host names, origins, the token, users of a proxy, and the headers that protect a browser."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Optional
from urllib.parse import urlsplit

from allocator.errors import ConfigError

HEADERS = {
    # the browser loads only this server's files: no inline code, no other origins, no embedding in a frame
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
BLANKS = " \t"  # around a header's value (RFC 9110, section 5.5); other blanks are part of a name
TOKEN_CHARACTERS = 16  # a shorter token can be guessed


@dataclass(frozen=True)
class User:
    """The sender of a request."""

    name: str
    role: str
    """"viewer" may read. "operator" may also change groups. "" may do nothing."""

    @property
    def operates(self) -> bool:
        return self.role == "operator"


@dataclass(frozen=True)
class Login:
    """A proxy that logs users in, and adds their names to each request as headers.

    The proxy must drop such headers of its clients. The server refuses requests from other addresses.
    """

    user_header: str
    groups_header: Optional[str] = None
    """The header with the user's groups, separated by commas."""
    proxies: frozenset[str] = frozenset({"127.0.0.1", "::1"})
    operators: frozenset[str] = frozenset()
    """Names of users, and names of groups with the prefix "@"."""
    viewers: frozenset[str] = frozenset()
    """Empty: every user may read."""

    def __post_init__(self) -> None:
        for header in filter(None, (self.user_header, self.groups_header)):
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", header):
                raise ConfigError(f"{header!r} is not a header name such as X-Forwarded-User")
        for address in self.proxies:
            if _address(address) is None:
                raise ConfigError(f"the proxy {address!r} is not an IP address")

    def user(self, headers: Mapping[str, str], address: str) -> Optional[User]:
        """Returns the sender; None if the request does not come from the proxy, or names no user."""
        name = headers.get(self.user_header, "").strip(BLANKS)
        if not name or _address(address) not in map(_address, self.proxies):
            return None
        groups = headers.get(self.groups_header, "") if self.groups_header is not None else ""
        known = {f"@{name}" for name in (each.strip(BLANKS) for each in groups.split(",")) if name}
        if not name.startswith("@"):  # names with "@" are groups
            known.add(name)
        if known & self.operators:
            return User(name, "operator")
        return User(name, "viewer" if not self.viewers or known & self.viewers else "")


@dataclass(frozen=True)
class Guard:
    """Decides which requests are allowed.

    A page of another site, open in a browser that can reach this server, must neither read nor change anything. Such a
    page can make its own host name resolve to this server, so the Host header must be one of this server's names. It
    can also post forms, so a change needs a token in a header, which a form cannot send, and an Origin header, if
    present, must be this server's. There are no cookies.
    """

    hosts: frozenset[str] = LOCAL
    """Host names of this server, without port. IP addresses are always accepted."""
    token: str | None = field(default=None, repr=False)
    """The token that allows changes, if there is one."""
    login: Optional[Login] = None
    """The proxy; None: every sender may read."""

    @property
    def read_only(self) -> bool:
        """Whether all changes are refused."""
        return self.token is None and (self.login is None or not self.login.operators)

    def user(self, headers: Mapping[str, str], address: str) -> Optional[User]:
        """Returns the user who sent the request, or None if the user must log in first."""
        if self.allows(headers.get("Authorization")):
            return User("token", "operator")
        return User("", "viewer") if self.login is None else self.login.user(headers, address)

    @classmethod
    def make(cls, hosts: Collection[str] = (), token: str | None = None, login: Login | None = None) -> Guard:
        """Raises ConfigError for a token that is easy to guess, or for a bad host name."""
        if token is not None and (len(token) < TOKEN_CHARACTERS or not token.isascii() or not token.isprintable()):
            raise ConfigError(
                f"the token of the web server must have at least {TOKEN_CHARACTERS} printable ASCII characters; "
                "`openssl rand -hex 32` prints a good one"
            )
        for host in hosts:
            if _name(host) is None or _name(host) != host.lower():
                raise ConfigError(f"{host!r} is not a host name; write it without scheme and port")
        return cls(LOCAL | {host.lower() for host in hosts}, token, login)

    def knows_host(self, header: str | None) -> bool:
        """Whether the Host header is one of this server's names."""
        name = _name(header)
        return name is not None and (name in self.hosts or _address(name) is not None)

    def same_origin(self, origin: str | None, host: str | None, scheme: str = "http") -> bool:
        """Whether a request comes from this server's page, or from no page. `scheme` is "https" behind TLS."""
        if origin is None:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return scheme in ("http", "https") and parts.scheme == scheme and parts.netloc.lower() == (host or "").lower()

    def allows(self, authorization: str | None) -> bool:
        """Whether the header is "Bearer <token>". Takes the same time for every wrong token."""
        scheme, _, given = (authorization or "").partition(" ")
        if self.token is None or scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given.strip(BLANKS).encode(), self.token.encode())


def _name(header: str | None) -> str | None:
    try:
        parts = urlsplit(f"//{header or ''}")
        parts.port  # noqa: B018 - raises for an invalid port
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment or not parts.hostname:
        return None
    return parts.hostname


def _address(text: str) -> Optional[str]:
    """Returns an IP address in normal form, with IPv4 in IPv6 as IPv4; None for any other text."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return str(getattr(found, "ipv4_mapped", None) or found)
