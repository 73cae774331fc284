"""Opens a connection to a broker through a proxy: HTTP CONNECT (RFC 9110), or SOCKS 5 (RFC 1928 and 1929)."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import socket
import struct
from typing import Final, NamedTuple, Optional
from urllib.parse import unquote, urlsplit

from allocator.core.client.errors import ConnectionFailed
from allocator.core.errors import ConfigError
from allocator.core.text.quoting import os_cause

SCHEMES: Final = ("http", "socks5", "socks5h")
LONGEST_RESPONSE: Final = 65536
NO_LOGIN, PASSWORD = 0, 2
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


class Proxy(NamedTuple):
    """A proxy on the way to all brokers. With "http" and "socks5h" the proxy resolves their names, with "socks5" this
    process does."""

    scheme: str
    host: str
    port: int
    user: Optional[str] = None
    password: str = ""

    def __str__(self) -> str:  # without the password
        return f"proxy {self.scheme}://{self.host}:{self.port}"

    @classmethod
    def of(cls, url: object) -> Proxy:
        """Reads the setting `proxy_url`. Raises ConfigError."""
        try:
            parts = urlsplit(str(url))
            scheme, host, port = parts.scheme, parts.hostname, parts.port
        except ValueError:  # its text has the URL, which may have a password
            scheme, host, port = "", None, None
        if scheme not in SCHEMES or not host or not port:
            shown = f" of the scheme {scheme!r}" if scheme and scheme not in SCHEMES else ""
            forms = ", ".join(f"{each}://[user:password@]host:port" for each in SCHEMES)
            raise ConfigError(f"security: proxy_url is not a proxy's URL{shown}; use one of {forms}")
        user = None if parts.username is None else unquote(parts.username)
        return cls(scheme, host, port, user, unquote(parts.password or ""))

    async def connect(self, host: str, port: int) -> socket.socket:
        """A socket whose other end is the broker. Raises OSError, and ConnectionFailed if the proxy refuses."""
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

    async def _tunnel(self, host: str, port: int) -> socket.socket:
        try:
            sock = await _connected(self.host, self.port)
            try:
                await (self._http_connect if self.scheme == "http" else self._socks)(sock, host, port)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            raise self._error(f"fails: {os_cause(error) or type(error).__name__}") from error
        return sock

    async def _http_connect(self, sock: socket.socket, host: str, port: int) -> None:
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if self.user is not None:
            login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            lines.append(f"Proxy-Authorization: Basic {login}")
        await self._send(sock, "\r\n".join([*lines, "", ""]).encode())
        head = b""
        while b"\r\n\r\n" not in head:  # nothing follows it: the broker is silent until it gets a request
            head += await self._receive(sock, 4096)
            if len(head) > LONGEST_RESPONSE:
                raise self._error("sends no end of its response")
        status = head.partition(b"\r\n")[0].decode("latin-1")
        if status.split()[1:2] != ["200"]:
            raise self._error(f"does not connect to {target}: {status[:100]!r}")

    async def _socks(self, sock: socket.socket, host: str, port: int) -> None:
        methods = [NO_LOGIN] if self.user is None else [NO_LOGIN, PASSWORD]
        await self._send(sock, bytes([5, len(methods), *methods]))
        version, method = await self._exactly(sock, 2)
        if version != 5:
            raise self._error("does not speak SOCKS 5")
        if method == PASSWORD and self.user is not None:
            await self._log_in(sock, self.user.encode(), self.password.encode())
        elif method != NO_LOGIN:
            raise self._error("wants a login" if self.user is None else "takes no login with a user and a password")
        await self._send(sock, b"\x05\x01\0" + _address(host) + struct.pack(">H", port))
        _, code, _, kind = await self._exactly(sock, 4)
        if code:
            raise self._error(f"does not connect to {host}:{port}: {REFUSALS.get(code, f'error {code}')}")
        size = {1: 4, 4: 16}.get(kind) or (await self._exactly(sock, 1))[0]
        await self._exactly(sock, size + 2)  # the address and the port of the proxy's end

    async def _log_in(self, sock: socket.socket, user: bytes, password: bytes) -> None:
        if max(len(user), len(password)) > 255:
            raise self._error("takes a user and a password of at most 255 bytes")
        await self._send(sock, bytes([1, len(user)]) + user + bytes([len(password)]) + password)
        if (await self._exactly(sock, 2))[1]:
            raise self._error("refuses the user or the password")

    async def _send(self, sock: socket.socket, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(sock, data)

    async def _exactly(self, sock: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += await self._receive(sock, size - len(data))
        return data

    async def _receive(self, sock: socket.socket, most: int) -> bytes:
        data = await asyncio.get_running_loop().sock_recv(sock, most)
        if not data:
            raise self._error("closed the connection")
        return data

    def _error(self, what: str) -> Exception:
        return ConnectionFailed(f"{self} {what}")


async def _connected(host: str, port: int) -> socket.socket:
    """A socket that is connected to the first address of `host` that answers."""
    loop = asyncio.get_running_loop()
    failed = OSError(f"no address of {host}")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failed


def _address(host: str) -> bytes:
    """A host as SOCKS 5 encodes it: 1 an IPv4 address, 3 a name, 4 an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        name = host.encode("idna")
        return bytes([3, len(name)]) + name
    return bytes([1 if address.version == 4 else 4]) + address.packed
