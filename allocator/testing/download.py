"""Downloads pinned jars from the Maven repository that `find_registry` returns.

Guarantee: a file with the suffix `.jar` is complete and has the pinned SHA-256. After an error, the next call downloads
only the other files.

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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.client import responses
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from .. import __version__
from ..errors import MissingExtra
from .errors import JarsUnavailable
from .pins import Jar, sha256

try:
    import requests
    from requests.adapters import HTTPAdapter
    from requests.utils import get_environ_proxies, select_proxy
    from urllib3.util import Retry
except ImportError as error:
    raise MissingExtra("servers for tests need requests: pip install 'zk-partition-allocator[testing]'") from error

OnBytes = Callable[[int], None]

_CONNECT_S, _READ_S = 15.0, 60.0
_ATTEMPTS = 4  # of a request, and of a file whose connection breaks
_PAUSE_S = 0.5  # pause before the second retry of a request; doubles with each retry
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
    """Returns `ALLOCATOR_MAVEN_MIRROR`, which may contain a user and a password, else Maven Central.

    Raises JarsUnavailable for an invalid URL.
    """
    text = os.environ.get(MIRROR)
    if not text:
        return Registry(CENTRAL, "Maven Central")
    parts = urlsplit(text.strip())
    try:
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number
        sound = False
    if not sound or parts.query or parts.fragment:
        shown = re.sub(r"//[^/]*@", "//", text)
        raise JarsUnavailable(
            f"{MIRROR} names the Maven repository {shown!r}, which is not an http or https URL. Set {MIRROR} to the "
            f"directory that has org/apache/kafka, such as {CENTRAL}"
        )
    credentials = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    host = parts.netloc.rpartition("@")[2]
    return Registry(urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")), MIRROR, credentials)


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
        self._receive()
        found = sha256(self.part)
        if found != self.jar.sha256:
            self._restart()
            raise JarsUnavailable(
                f"{self.url} has SHA-256 {found}, expected {self.jar.sha256}. It is not the published file. Check "
                f"where {self.registry.source} leads, and whether a proxy or a login page responds instead; or set "
                f"{MIRROR} to another Maven repository"
            )
        with _disk(self.target):
            os.replace(self.part, self.target)

    def _receive(self) -> None:
        """Writes `part`. Starts over if the connection breaks."""
        for attempt in range(1, _ATTEMPTS + 1):
            self.part.unlink(missing_ok=True)
            with self._request() as response:
                try:
                    for chunk in response.iter_content(_CHUNK):
                        # opened for each chunk, because errors of the disk and of requests are both OSErrors
                        with _disk(self.part), open(self.part, "ab") as file:
                            file.write(chunk)
                        self.on_bytes(len(chunk))
                    return
                except OSError as error:
                    self._restart()
                    if attempt == _ATTEMPTS:
                        raise self._unavailable(error) from error

    def _request(self) -> requests.Response:
        try:
            response = self.session.get(self.url, stream=True, timeout=(_CONNECT_S, _READ_S))
        except OSError as error:  # also a missing file in REQUESTS_CA_BUNDLE
            raise self._unavailable(error) from error
        if response.status_code != 200:
            response.close()
            raise self._refused(response)
        return response

    def _restart(self) -> None:
        if self.part.exists():
            self.on_bytes(-self.part.stat().st_size)
            self.part.unlink()

    # -- error texts -----------------------------------------------------------------------------------------------

    def _refused(self, response: requests.Response) -> JarsUnavailable:
        # not the repository's own words, which may quote the password
        said = f"{self.url} answered {response.status_code} {responses.get(response.status_code, '')}".strip()
        if response.status_code in _TRY_AGAIN:
            return JarsUnavailable(
                f"{said} (the URL is from: {self.registry.source}). Try again later, or set {MIRROR} to another "
                "repository"
            )
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

    def _unavailable(self, reason: OSError) -> JarsUnavailable:
        said = f"cannot download {self.url} (from: {self.registry.source}): {_cause(reason)}"
        proxy = select_proxy(self.url, get_environ_proxies(self.url))
        via = f" through the proxy {_without_credentials(proxy)}" if proxy else ""
        if isinstance(reason, requests.exceptions.ProxyError):
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
    # a busy server gets the request again after the pause that it names
    retry = Retry(
        _ATTEMPTS - 1,
        backoff_factor=_PAUSE_S,
        status_forcelist=_TRY_AGAIN,
        raise_on_status=False,
        raise_on_redirect=False,
    )
    session.mount("https://", _SystemTrust(max_retries=retry))
    session.mount("http://", HTTPAdapter(max_retries=retry))
    session.auth = registry.credentials
    session.headers.update({"User-Agent": f"allocator/{__version__}", "Accept-Encoding": "identity"})
    return session


def _check_space(missing: Iterable[Jar], into: Path) -> None:
    """Raises JarsUnavailable if the disk has too little space for the missing jars."""
    needed, free = sum(jar.size for jar in missing), shutil.disk_usage(into).free
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
