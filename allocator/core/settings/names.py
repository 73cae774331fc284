"""Checks names and addresses; each check raises a ConfigError that quotes the wrong text. Makes default client ids."""

from __future__ import annotations

import os
import re
import socket
import warnings
from typing import Any, Final

from allocator.core.errors import ConfigError, GroupNameError

MASK: Final = "***"
KAFKA_PORT: Final = 9092
ZOOKEEPER_PORT: Final = 2181
# ZooKeeper checks UTF-16, where characters above U+FFFF are surrogates
_ZNODE_NAME: Final = r"[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]"
"""One character of a znode name. "." and ".." are no names."""
_GROUP_NAME: Final = re.compile(_ZNODE_NAME + r"{1,249}\Z")
_PART: Final = re.compile(_ZNODE_NAME + r"+\Z")

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SCHEMES: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")  # as in the addresses that brokers advertise
_ADDRESS: Final = re.compile(
    r"(?:(?P<scheme>[^/]*)://)?"
    r"(?:\[(?P<bracketed>[0-9a-fA-F:.]+(?:%\w+)?)\]|(?P<host>[^\s\x00-\x1f:/;,?#@\[\]]+))(?::(?P<port>[0-9]{1,5}))?"
)
_ORIGIN: Final = re.compile(
    r"(?P<origin>https?://(?:[\w.-]+|\[[0-9a-f:.]+\]))(?P<rest>(?::[0-9]{1,5})?(?:[/?#].*)?)", re.IGNORECASE | re.DOTALL
)
_IPV6: Final = re.compile(r"[0-9a-fA-F.]*:[0-9a-fA-F.]*:[0-9a-fA-F:.]*(?:%\w+)?")


def check_topic(name: Any) -> None:
    """Checks a topic name by the rule of the brokers. Otherwise a wrong name would look like a missing topic.

    Raises `TypeError` if the name is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"a topic name must be a string, not {name!r}")
    if name in (".", "..") or not _TOPIC_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a topic name: use 1 to 249 letters, digits, '.', '_' and '-', and not '.' or '..'"
        )


def check_group(name: Any) -> None:
    """Checks the name of a group in ZooKeeper, which has to be a znode name. Raises `GroupNameError`."""
    if not isinstance(name, str) or not _GROUP_NAME.match(name) or name in (".", ".."):
        raise GroupNameError(
            f"group name {name!r} cannot be a znode: it must have 1 to 249 characters, no '/', no control character, "
            "no character above U+FFFF such as an emoji, and be neither '.' nor '..'"
        )


def check_pattern_syntax(pattern: str) -> None:
    """Checks a pattern by Python's syntax. A pattern that a leader matches must also follow RE2's."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # sets within sets, as Java has them, match nothing here
            re.compile(pattern)
    except (re.error, FutureWarning) as error:
        raise ConfigError(f"pattern {pattern!r} is not a regular expression: {error}") from None


def parse_address(text: Any, port: int = KAFKA_PORT) -> tuple[str, int]:
    """Parses "host", "host:port", "[IPv6]:port" or "SCHEME://host:port". Returns (host, port), by default `port`."""
    address = text.strip() if isinstance(text, str) else ""
    if _is_ipv6(address):
        return address, port
    match = _ADDRESS.fullmatch(address)
    if match is not None and (match["scheme"] or _SCHEMES[0]).upper() in _SCHEMES:
        number = port if match["port"] is None else int(match["port"])
        if 0 < number < 65536 and (match["bracketed"] is None or _is_ipv6(match["bracketed"])):
            return match["bracketed"] or match["host"], number
    raise address_error(text)


def _is_ipv6(text: str) -> bool:
    if not _IPV6.fullmatch(text):
        return False
    import ipaddress

    try:
        ipaddress.IPv6Address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def address_error(given: Any) -> ConfigError:
    """Returns the error for addresses that are not valid. It does not quote an "@", which may follow a password."""
    if "@" in str(given):
        return ConfigError(f"{MASK} is not an address: an address has no user and password; write host or host:port")
    return ConfigError(f"{given!r} is not an address; write host or host:port")


def address_text(host: str, port: int | None) -> str:
    """Formats an address as `parse_address` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_ensemble(text: Any) -> tuple[str, str]:
    """Parses "host:port,host:port/chroot". Returns (servers, chroot); the chroot begins with "/" or is empty."""
    if not isinstance(text, str) or not text:
        raise ConfigError(f"ZooKeeper hosts must be 'host:port[,host:port...][/chroot]', not {text!r}")
    servers, slash, chroot = text.partition("/")
    for server in servers.split(","):
        try:
            parse_address(server, ZOOKEEPER_PORT)
        except ConfigError:
            raise address_error(text if "@" in text else server) from None
    if slash and not chroot.strip("/"):
        raise ConfigError(f"ZooKeeper hosts {text!r}: a chroot must follow the '/'; remove the '/' if there is none")
    return servers, check_path("the chroot of ZooKeeper", f"/{chroot.strip('/')}") if slash else ""


def check_path(what: str, path: str) -> str:
    """Checks the path of a znode, and returns it."""
    first, *parts = path.split("/")
    if first or not parts or any(part in (".", "..") or not _PART.match(part) for part in parts):
        raise ConfigError(
            f"{what} {path!r} must be an absolute path such as '/allocator', without control characters and emoji"
        )
    return path


def default_client_id(program: str = "allocator", instance_id: str | None = None) -> str:
    """Returns a client id that is unique across processes and hosts: "allocator-web1-4242-3f9a".

    With `instance_id` the next process gets the same client id: "allocator-billing-7".
    """
    if instance_id is not None:
        return f"{program}-{instance_id}"
    return f"{program}-{socket.gethostname()}-{os.getpid()}-{os.urandom(2).hex()}"


def without_url_secrets(text: str) -> str:
    """Returns the text with a mask for the passwords and the queries of the URLs in it."""
    text = re.sub(r"(://[^/\s@]*:)[^/\s@]*@", rf"\1{MASK}@", text)
    return re.sub(r"(\bhttps?://[^\s\"?]*\?)[^\s\"]+", rf"\1{MASK}", text)


def url_origin(given: Any) -> str:
    """Returns the scheme and the host of an http URL, and a mask for what follows; else only the mask.

    A wrong URL may have a secret anywhere: before an "@" that a path or a query hides, or without a scheme.
    """
    match = _ORIGIN.fullmatch(given) if isinstance(given, str) and "@" not in given else None
    return MASK if match is None else match["origin"] + (f"/{MASK}" if match["rest"] else "")
