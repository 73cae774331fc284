"""Which Maven repository the jars come from: a setting, else the mirror of Maven's own settings, else Maven Central."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit
from xml.etree import ElementTree

from .errors import JarsUnavailable

__all__ = ["CENTRAL", "MIRROR", "Registry", "find_registry"]

MIRROR = "ALLOCATOR_MAVEN_MIRROR"
CENTRAL = "https://repo1.maven.org/maven2"


@dataclass(frozen=True)
class Registry:
    """`url` has no credentials and no slash at its end; `source` says where the URL was found."""

    url: str
    source: str
    credentials: tuple[str, str] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.url} ({self.source})"


def find_registry() -> Registry:
    """`ALLOCATOR_MAVEN_MIRROR`, else the mirror of Maven Central in ~/.m2/settings.xml, else Maven Central.

    The setting and the file may name a user and a password. Raises JarsUnavailable for a URL that cannot be one.
    """
    chosen = os.environ.get(MIRROR)
    if chosen:
        return _registry(chosen, MIRROR)
    settings = Path("~/.m2/settings.xml").expanduser()
    if settings.is_file():
        for url, credentials in _mirrors(settings):
            return _registry(url, str(settings), credentials)
    return Registry(CENTRAL, "Maven Central")


def _registry(text: str, source: str, credentials: tuple[str, str] | None = None) -> Registry:
    parts = urlsplit(text.strip())
    try:
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        sound = False
    if not sound or parts.query or parts.fragment:
        shown = re.sub(r"//[^/]*@", "//", text)
        raise JarsUnavailable(
            f"{source} names the Maven repository {shown!r}, which is not a URL of http or https. "
            f"Set {MIRROR} to the directory that has org/apache/kafka, such as {CENTRAL}"
        )
    if parts.username is not None:
        credentials = (unquote(parts.username), unquote(parts.password or ""))
    host = parts.netloc.rpartition("@")[2]
    return Registry(urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")), source, credentials)


def _mirrors(settings: Path) -> Iterator[tuple[str, tuple[str, str] | None]]:
    """(URL, credentials) of each mirror that stands for Maven Central, the first of which Maven takes."""
    try:
        root = ElementTree.parse(settings).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise JarsUnavailable(
            f"cannot read the mirror of Maven Central from {settings}: {error}. Mend the file, or set {MIRROR}"
        ) from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    servers = {
        _text(server, "id"): (_text(server, "username"), _text(server, "password"))
        for server in root.iterfind("servers/server")
    }
    for mirror in root.iterfind("mirrors/mirror"):
        patterns = {pattern.strip() for pattern in _text(mirror, "mirrorOf").split(",")}
        if patterns & {"central", "*", "external:*"} and "!central" not in patterns:
            user, password = servers.get(_text(mirror, "id"), ("", ""))
            if password.startswith("{"):
                raise JarsUnavailable(
                    f"{settings} has the password of {_text(mirror, 'url')} encrypted. "
                    f"Set {MIRROR} to that URL with user and password: https://user:password@host/path"
                )
            yield _text(mirror, "url"), (user, password) if user else None


def _text(element: ElementTree.Element, tag: str) -> str:
    """Maven puts variables of the environment in place of ${env.NAME}."""
    return re.sub(
        r"\$\{env\.(\w+)\}", lambda found: os.environ.get(found[1], ""), (element.findtext(tag) or "").strip()
    )
