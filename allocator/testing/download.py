"""Downloads pinned jars from the Maven repository that `find_registry` returns.

Guarantee: a file with the suffix `.jar` is complete and has the pinned SHA-256. An interrupted download continues from
its last byte, in the same call or in the next one.

The download uses the proxies in HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY and the passwords in ~/.netrc. It
trusts the certificate authorities of the system, of SSL_CERT_FILE and of REQUESTS_CA_BUNDLE.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit
from xml.etree import ElementTree

from .. import __version__
from ..errors import MissingExtra
from .errors import JarsUnavailable
from .pins import Jar, sha256

try:
    import requests
    from requests.adapters import HTTPAdapter
    from requests.utils import get_environ_proxies, select_proxy
except ImportError as error:
    raise MissingExtra("servers for tests need requests: pip install 'zk-partition-allocator[testing]'") from error

OnBytes = Callable[[int], None]

_CONNECT_S, _READ_S = 15.0, 60.0
_ATTEMPTS = 4  # maximum number of consecutive attempts that receive nothing
_PAUSE_S = 0.5  # pause before the first retry; doubles with each retry
_LONGEST_PAUSE_S = 30.0
_CHUNK = 1 << 16
_TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_NOT_ALLOWED = (401, 403)
MIRROR = "ALLOCATOR_MAVEN_MIRROR"
CENTRAL = "https://repo1.maven.org/maven2"


@dataclass(frozen=True)
class Registry:
    """A Maven repository. `url` has no credentials and no trailing slash; `source` is the setting that names it."""

    url: str
    source: str
    credentials: tuple[str, str] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.url} ({self.source})"


def find_registry() -> Registry:
    """Returns `ALLOCATOR_MAVEN_MIRROR`, else the mirror in ~/.m2/settings.xml, else Maven Central.

    The setting and the file may contain a user and a password. Raises JarsUnavailable for an invalid URL.
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
    except ValueError:  # a port that is not a number
        sound = False
    if not sound or parts.query or parts.fragment:
        shown = re.sub(r"//[^/]*@", "//", text)
        raise JarsUnavailable(
            f"{source} names the Maven repository {shown!r}, which is not an http or https URL. Set {MIRROR} to the "
            f"directory that has org/apache/kafka, such as {CENTRAL}"
        )
    if parts.username is not None:
        credentials = (unquote(parts.username), unquote(parts.password or ""))
    host = parts.netloc.rpartition("@")[2]
    return Registry(urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")), source, credentials)


def _mirrors(settings: Path) -> Iterator[tuple[str, tuple[str, str] | None]]:
    """Yields (URL, credentials) of each mirror of Maven Central; Maven uses the first."""
    try:
        root = ElementTree.parse(settings).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise JarsUnavailable(
            f"cannot read the mirror of Maven Central from {settings}: {error}. Correct the file, or set {MIRROR}"
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
                    f"{settings} has the password of {_text(mirror, 'url')} encrypted. Set {MIRROR} to that URL with "
                    "user and password: https://user:password@host/path"
                )
            yield _text(mirror, "url"), (user, password) if user else None


def _text(element: ElementTree.Element, tag: str) -> str:
    """Returns the text of a child element, with ${env.NAME} replaced as in Maven."""
    return re.sub(
        r"\$\{env\.(\w+)\}", lambda found: os.environ.get(found[1], ""), (element.findtext(tag) or "").strip()
    )


class _Later(Exception):
    """The download failed, but a retry may help. `pause_s`: seconds that the server requests before it, if any."""

    def __init__(self, text: str, pause_s: float = 0.0) -> None:
        super().__init__(text)
        self.pause_s = pause_s


class _Wrong(Exception):
    """The downloaded file is not the pinned one."""


def download(jars: Iterable[Jar], into: Path, registry: Registry, on_bytes: OnBytes) -> None:
    """Downloads the jars that the directory `into` does not have.

    Calls `on_bytes(n)` for each `n` bytes received now or by an earlier call. `n` is negative if a file's download
    starts over. Raises JarsUnavailable.
    """
    missing = []
    for jar in jars:
        if (into / jar.name).is_file() and sha256(into / jar.name) == jar.sha256:
            on_bytes(jar.size)
        else:
            missing.append(jar)
    _check_space(missing, into)
    with _session(registry) as session:
        for jar in missing:
            _Download(session, registry, jar, into, on_bytes).run()


class _Download:
    """Downloads one jar into the file `part`, and renames it when it is complete."""

    def __init__(self, session: requests.Session, registry: Registry, jar: Jar, into: Path, on_bytes: OnBytes) -> None:
        self.session, self.registry, self.jar, self.on_bytes = session, registry, jar, on_bytes
        self.target = into / jar.name
        self.part = into / f"{jar.name}.part"
        self.url = f"{registry.url}/{jar.path}"

    def run(self) -> None:
        had = self._size()
        self.on_bytes(had)
        try:
            self._complete()
        except _Wrong as wrong:
            # the part that an earlier call left may be of another file, so retry once from the start
            if not had:
                raise self._wrong(wrong) from None
            try:
                self._restart()
                self._complete()
            except _Wrong as again:
                raise self._wrong(again) from None
        with _disk(self.target):
            os.replace(self.part, self.target)

    def _complete(self) -> None:
        """Downloads until `part` is the pinned file. If it is another file, removes it and raises _Wrong."""
        failures = 0
        while self._size() != self.jar.size:
            before = self._size()
            try:
                self._continue(before)
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
                reason: Exception = error
            except _Later as later:
                reason = later
            except OSError as error:  # any other error of the library requests, or a missing file in REQUESTS_CA_BUNDLE
                raise self._unavailable(error) from error
            else:
                continue
            failures = failures + 1 if self._size() <= before else 1
            if failures == _ATTEMPTS or _final(reason):
                raise self._unavailable(reason) from reason
            asked = reason.pause_s if isinstance(reason, _Later) else 0.0
            time.sleep(min(max(asked, _PAUSE_S * 2 ** (failures - 1)), _LONGEST_PAUSE_S))
        found = sha256(self.part)
        if found != self.jar.sha256:
            self._restart()
            raise _Wrong(f"has SHA-256 {found}, expected {self.jar.sha256}")

    def _continue(self, at: int) -> None:
        """Sends one request for the missing bytes. Even if it raises, `part` may have grown."""
        headers = {"Range": f"bytes={at}-"} if at else {}
        with self.session.get(self.url, headers=headers, stream=True, timeout=(_CONNECT_S, _READ_S)) as response:
            if response.status_code in _TRY_AGAIN:
                pause = response.headers.get("Retry-After", "")
                raise _Later(_status(response), float(pause) if pause.isdigit() else 0.0)
            if response.status_code == 416:
                self._restart()
                return
            if response.status_code not in (200, 206):
                raise self._refused(response)
            if at and not _continues(response, at):
                self._restart()  # a server without ranges sends the whole file
            promised = response.headers.get("Content-Length", "")
            came = 0
            for chunk in response.iter_content(_CHUNK):
                # opened for each chunk, because errors of the disk and of requests are both OSErrors
                with _disk(self.part), open(self.part, "ab") as file:
                    file.write(chunk)
                came += len(chunk)
                self.on_bytes(len(chunk))
                if self._size() > self.jar.size:
                    break
        size = self._size()
        if size > self.jar.size or (size < self.jar.size and promised == str(came)):
            kind = response.headers.get("Content-Type", "unknown type")
            self._restart()
            more = "more than " if size > self.jar.size else ""
            raise _Wrong(f"has {more}{min(size, self.jar.size)} bytes of {kind}, expected {self.jar.size}")
        if size < self.jar.size:
            raise _Later("the connection ended before the end of the file")

    def _size(self) -> int:
        try:
            return self.part.stat().st_size
        except FileNotFoundError:
            return 0

    def _restart(self) -> None:
        self.on_bytes(-self._size())
        self.part.unlink(missing_ok=True)

    # -- error texts -----------------------------------------------------------------------------------------------

    def _wrong(self, wrong: _Wrong) -> JarsUnavailable:
        return JarsUnavailable(
            f"{self.url} {wrong}. It is not the published file. Check where {self.registry.source} "
            f"leads, and whether a proxy or a login page responds instead; or set {MIRROR} to another Maven "
            "repository"
        )

    def _refused(self, response: requests.Response) -> JarsUnavailable:
        said = f"{self.url} answered {_status(response)}"
        if response.status_code in _NOT_ALLOWED:
            return JarsUnavailable(
                f"{said}: the repository requires credentials or rejected them. Set them in ~/.netrc or as "
                f"{MIRROR}=https://user:password@host/path (the URL is from: {self.registry.source})"
            )
        return JarsUnavailable(
            f"{said}: the repository does not have {self.jar.coordinate}. Check its URL {self.registry.url} (from: "
            f"{self.registry.source}): it must be the directory that has org/apache/kafka; or set {MIRROR} to another "
            "Maven repository"
        )

    def _unavailable(self, reason: Exception) -> JarsUnavailable:
        said = f"cannot download {self.url} (from: {self.registry.source}): {_cause(reason)}"
        proxy = select_proxy(self.url, get_environ_proxies(self.url))
        via = f" through the proxy {_without_credentials(proxy)}" if proxy else ""
        if isinstance(reason, _Later):
            remedy = f"Try again later: the download continues where it stopped. Or set {MIRROR} to another repository"
        elif isinstance(reason, requests.exceptions.ProxyError):
            remedy = "Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
        elif isinstance(reason, requests.exceptions.SSLError):
            remedy = "If your network has its own certificate authority, set SSL_CERT_FILE to its certificate"
        else:
            remedy = (
                f"Check the network, set HTTPS_PROXY if it has a proxy, or set {MIRROR} to a reachable repository; or "
                "copy a filled cache here (ALLOCATOR_CACHE)"
            )
        return JarsUnavailable(f"{said}{via}. {remedy}")


class _SystemTrust(HTTPAdapter):
    """Trusts the certificate authorities of the system, to which companies add their own, and those of requests."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, ssl_context=ssl.create_default_context(), **options)

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        return super().proxy_manager_for(*args, ssl_context=ssl.create_default_context(), **options)


def _session(registry: Registry) -> requests.Session:
    session = requests.Session()
    session.mount("https://", _SystemTrust())
    session.auth = registry.credentials
    # a compressed response cannot be resumed
    session.headers.update({"User-Agent": f"allocator/{__version__}", "Accept-Encoding": "identity"})
    return session


def _check_space(missing: Iterable[Jar], into: Path) -> None:
    """Raises JarsUnavailable if the disk has too little space for the missing jars."""
    parts = sum(path.stat().st_size for path in into.glob("*.part"))
    needed, free = sum(jar.size for jar in missing) - parts, shutil.disk_usage(into).free
    if needed > free:
        raise JarsUnavailable(
            f"the jars need {needed / 1e6:.1f} MB more in {into}, and {free / 1e6:.1f} MB are free there. Free some "
            "space, or set ALLOCATOR_CACHE to a directory of another disk"
        )


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Converts write errors in the block to JarsUnavailable."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise JarsUnavailable(
            f"cannot write {path}: {error.strerror}. {'Free some space' if full else 'Check that directory'}, or set "
            "ALLOCATOR_CACHE to another one"
        ) from error


def _continues(response: requests.Response, at: int) -> bool:
    return response.status_code == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {at}-")


def _status(response: requests.Response) -> str:
    return f"{response.status_code} {response.reason}".strip()


def _final(reason: Exception) -> bool:
    """Whether a retry cannot help."""
    return isinstance(reason, requests.exceptions.SSLError)


def _cause(error: BaseException) -> str:
    """Returns the text of the innermost cause, because the outer ones only repeat the URL and class names."""
    found = str(error)
    inner: BaseException | None = error
    while inner is not None:
        found = str(inner) or found
        inner = inner.__cause__ or inner.__context__
    return found


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.scheme else url.rpartition("@")[2]
