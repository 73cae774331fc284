"""Opens a connection to a broker through a proxy: HTTP CONNECT (RFC 9110), or SOCKS 5 (RFC 1928 and 1929)."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import socket
import struct
import sys
from dataclasses import dataclass, field
from typing import Any, Final, Optional
from urllib.parse import unquote, urlsplit

from allocator.core.client.errors import ConnectionFailed
from allocator.core.client.masking import quoted
from allocator.core.errors import ConfigError
from allocator.core.settings.names import address_text
from allocator.core.text.quoting import os_cause

SCHEMES: Final = ("http", "socks5", "socks5h")
LONGEST_RESPONSE: Final = 65536
NO_LOGIN, PASSWORD = 0, 2
NEXT_ADDRESS_S: Final = 0.25  # as RFC 8305 recommends. Higher: fewer needless connections; lower: connects sooner
REFUSALS: Final = {
    1: "general failure",
    2: "not allowed by its rules",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "time to live expired",
    7: "command not supported",
    8: "address type not supported",
}

Reader = asyncio.StreamReader


@dataclass(frozen=True)
class Proxy:
    """A proxy for the connections to all brokers.

    With "http" and "socks5h" the proxy resolves host names, with "socks5" this process does.
    """

    scheme: str
    host: str
    port: int
    user: Optional[str] = None
    password: str = field(default="", repr=False)

    def __str__(self) -> str:  # leaves out the password, because errors contain this text
        return f"proxy {self.scheme}://{address_text(self.host, self.port)}"

    @classmethod
    def of(cls, url: object) -> Proxy:
        """Reads the setting `proxy_url`. Raises ConfigError."""
        try:
            parts = urlsplit(str(url))
            scheme, host, port = parts.scheme, parts.hostname, parts.port
        except ValueError:  # its text quotes the URL, which may have a password
            scheme, host, port = "", None, None
        if scheme not in SCHEMES or not host or not port:
            shown = f" of the scheme {scheme!r}" if scheme and scheme not in SCHEMES else ""
            forms = ", ".join(f"{each}://[user:password@]host:port" for each in SCHEMES)
            raise ConfigError(f"security: proxy_url is not a proxy's URL{shown}; use one of {forms}")
        user = None if parts.username is None else unquote(parts.username)
        return cls(scheme, host, port, user, unquote(parts.password or ""))

    async def connect(self, host: str, port: int) -> asyncio.Transport:
        """Returns a transport to the broker. Raises OSError, and ConnectionFailed if the proxy refuses."""
        targets = [host]
        if self.scheme == "socks5":
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            targets = list(dict.fromkeys(str(address[0]) for *_, address in found))
        while True:
            try:
                return await self._tunnel(targets.pop(0), port)
            except ConnectionFailed:
                if not targets:
                    raise

    async def _tunnel(self, host: str, port: int) -> asyncio.Transport:
        reader = asyncio.StreamReader(LONGEST_RESPONSE)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            # not open_connection: a StreamWriter closes the connection when it is garbage-collected
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(lambda: protocol, self.host, self.port, **racing(loop))
            try:
                await (self._http_connect if self.scheme == "http" else self._socks)(reader, transport, host, port)
            except BaseException:
                transport.abort()
                raise
        except asyncio.IncompleteReadError:
            raise self._error("closed the connection") from None
        except asyncio.LimitOverrunError:
            raise self._error("sends a response that is too long") from None
        except OSError as error:
            raise self._error(f"fails: {os_cause(error) or type(error).__name__}") from error
        return transport

    async def _http_connect(self, reader: Reader, transport: asyncio.Transport, host: str, port: int) -> None:
        target = address_text(host, port)
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if self.user is not None:
            login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            lines.append(f"Proxy-Authorization: Basic {login}")
        transport.write("\r\n".join([*lines, "", ""]).encode())
        # nothing comes after the head, since a broker sends nothing before it gets a request
        status = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0].decode("latin-1")
        if status.split()[1:2] != ["200"]:
            before = (f"{self.user}:",) if self.user else ()
            raise self._error(f"does not connect to {target}: {quoted(status, (self.password,), before=before)}")

    async def _socks(self, reader: Reader, transport: asyncio.Transport, host: str, port: int) -> None:
        methods = [NO_LOGIN] if self.user is None else [NO_LOGIN, PASSWORD]
        transport.write(bytes([5, len(methods), *methods]))
        version, method = await reader.readexactly(2)
        if version != 5:
            raise self._error("does not speak SOCKS 5")
        if method == PASSWORD and self.user is not None:
            user, password = self.user.encode(), self.password.encode()
            if max(len(user), len(password)) > 255:
                raise self._error("supports a user and a password of at most 255 bytes each")
            transport.write(bytes([1, len(user)]) + user + bytes([len(password)]) + password)
            if (await reader.readexactly(2))[1]:
                raise self._error("refuses the user or the password")
        elif method != NO_LOGIN:
            raise self._error("needs a login" if self.user is None else "does not support a login by user and password")
        transport.write(b"\x05\x01\0" + _address(host) + struct.pack(">H", port))
        _, code, _, kind = await reader.readexactly(4)
        if code:
            raise self._error(f"does not connect to {address_text(host, port)}: {REFUSALS.get(code, f'error {code}')}")
        size = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
        await reader.readexactly(size + 2)  # address and port of the proxy's own socket

    def _error(self, what: str) -> Exception:
        return ConnectionFailed(f"{self} {what}")


def racing(loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    """Returns the arguments of `create_connection` that try the next address of a name soon after the first one.

    Otherwise an address that drops packets takes all of the time. uvloop has no such arguments. Before Python 3.13.1,
    asyncio's race fails with an AssertionError if the loop's task factory starts tasks eagerly (gh-124309).
    """
    may_fail = sys.version_info < (3, 13, 1) and loop.get_task_factory() is not None
    return {"happy_eyeballs_delay": NEXT_ADDRESS_S} if isinstance(loop, asyncio.BaseEventLoop) and not may_fail else {}


def _address(host: str) -> bytes:
    """Encodes a host for SOCKS 5. Type 1 is an IPv4 address, 3 a name, 4 an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        name = host.encode("idna")
        return bytes([3, len(name)]) + name
    return bytes([1 if address.version == 4 else 4]) + address.packed
