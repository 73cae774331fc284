"""Token providers of SASL OAUTHBEARER: an object, a name `package.module:factory`, or a token endpoint.

All clients of a process share one provider for each name or endpoint.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import re
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

from kafka import errors  # noqa: F401 - imports `kafka` first, see `protocol.load`
from kafka.net.sasl.oauth import AbstractTokenProvider

from allocator.core.client.masking import quoted
from allocator.core.errors import ConfigError, MissingExtra
from allocator.core.settings.names import url_origin
from allocator.core.settings.targets import find
from allocator.core.text import parse_json
from allocator.core.text.quoting import repr_of

log = logging.getLogger(__name__)

ENDPOINT_TIMEOUT_S: Final = 10.0  # higher: waits for a slower endpoint; lower: a broker is retried sooner
TURN_S: Final = 60.0  # maximum wait for the call of another client
MAX_BYTES: Final = 1 << 20  # bytes of one response
RENEWED_AFTER: Final = 0.8  # share of a token's lifetime; connections authenticate again later, after 0.85 of it
SOURCE_OF_AWS: Final = "botocore (credentials and region: AWS_* variables, ~/.aws, or the role of the machine)"
# characters of a part of the URL that may be a key. Higher: more keys are shown; lower: more words are masked
MIN_KEY: Final = 8
TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # RFC 6750, section 2.1


def check_token_endpoint(text: str) -> None:
    """Raises ValueError if a secret must not be sent to this URL. The error does not quote the URL."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or port == 0 or parts.scheme not in ("http", "https") or parts.fragment or "@" in parts.netloc:
        raise ValueError("write it as https://host/path, without user and password")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ValueError("http would send the secret readable; http is for localhost only")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def with_credentials(security: Mapping[str, Any]) -> dict[str, Any]:
    """Returns checked settings, with a `TokenProvider` instead of the settings of OAUTHBEARER.

    Imports the module of a provider and calls its factory. Raises ConfigError and MissingExtra.
    """
    ready = {key: value for key, value in security.items() if not key.startswith("sasl_oauth_")}
    if security.get("sasl_mechanism") == "AWS_MSK_IAM":
        try:
            import botocore.session  # noqa: F401
        except ImportError as error:
            raise MissingExtra("AWS_MSK_IAM needs botocore: pip install 'zk-partition-allocator[msk]'") from error
    if security.get("sasl_mechanism") != "OAUTHBEARER":
        return ready
    given = security.get("sasl_oauth_token_provider")
    if isinstance(given, str):
        ready["sasl_oauth_token_provider"] = _named(given)
    elif given is not None:
        ready["sasl_oauth_token_provider"] = TokenProvider(given, f"token provider {type(given).__qualname__}")
    else:
        names = ("token_endpoint", "client_id", "client_secret", "scope")
        ready["sasl_oauth_token_provider"] = _of_endpoint(*(security.get(f"sasl_oauth_{name}") for name in names))
    return ready


@functools.cache
def _named(target: str) -> TokenProvider:
    what = f"sasl_oauth_token_provider {target!r}"
    factory = find(target, what, here=True)
    try:
        provider = factory()
    except Exception as error:
        raise ConfigError(f"{what}: the factory raised {quoted(repr_of(error), (), guess=True)}") from error
    return TokenProvider(provider, f"token provider {target!r}")


@functools.cache
def _of_endpoint(endpoint: str, client_id: str, client_secret: str, scope: str | None) -> TokenProvider:
    provider = ClientCredentials(endpoint, client_id, client_secret, scope)
    return TokenProvider(provider, f"token endpoint {provider.shown}")


class TokenError(Exception):
    """Raised by a token provider that has no token. The message gives the reason."""


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Calls a provider, one call at a time, and checks its tokens. `str()` returns the provider's name."""

    def __init__(self, provider: Any, name: str) -> None:
        if not callable(getattr(provider, "token", None)):
            raise ConfigError(f"{name}: {type(provider).__name__} has no method token()")
        self._provider = provider
        self._name = name
        self._turn = threading.Lock()

    def __str__(self) -> str:
        return self._name

    def token(self) -> str:
        if not self._turn.acquire(timeout=TURN_S):
            raise TokenError(f"an earlier call has not returned after {TURN_S:g} s")
        try:
            token = self._provider.token()
        finally:
            self._turn.release()
        if not isinstance(token, str):
            if asyncio.iscoroutine(token):
                token.close()
            raise TokenError(f"token() returned {type(token).__name__}; it must be a plain function that returns str")
        return token

    def extensions(self) -> Mapping[str, str]:
        extensions: Mapping[str, str] = getattr(self._provider, "extensions", dict)()
        return extensions

    def refused(self) -> None:
        """Called when a broker refused the last token."""
        if isinstance(self._provider, ClientCredentials):
            self._provider.forget()


class ClientCredentials:
    """Requests tokens from an OAuth 2.0 endpoint by the client credentials grant (RFC 6749, section 4.4).

    Keeps a token and renews it after 80 % of its lifetime. If the endpoint fails then, it returns the old token until
    that expires. A token without `expires_in` is returned once. `token` blocks for at most `ENDPOINT_TIMEOUT_S`.
    """

    def __init__(self, endpoint: str, client_id: str, client_secret: str, scope: str | None) -> None:
        self._endpoint = endpoint
        self.shown = url_origin(endpoint)
        """The endpoint for errors and logs: its path or its query may have a key."""
        self._client = (client_id, client_secret)
        url = urlsplit(endpoint)
        parts = (part for part in re.split("[/?&=]", f"{url.path}?{url.query}") if len(part) >= MIN_KEY)
        self._secrets = (client_secret, url.path if url.path.strip("/") else "", url.query, *parts)
        self._form = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
        self._token: str | None = None
        self._renew_at = self._expires_at = 0.0

    def token(self) -> str:
        # the wall clock, which also counts while the machine is suspended
        if self._token is not None and time.time() < self._renew_at:
            return self._token
        try:
            return self._fetch()
        except TokenError as error:
            left_s = self._expires_at - time.time()
            if self._token is None or left_s <= 0:
                raise
            log.warning("token endpoint %s: %s; the last token is valid for another %.0f s", self.shown, error, left_s)
            return self._token

    def forget(self) -> None:
        self._token = None

    def _fetch(self) -> str:
        requested_at = time.time()
        try:
            response = asyncio.run(self._request())
        except Exception as error:  # noqa: BLE001 - OSError, and tornado's errors without a response
            raise TokenError(f"no response: {self._quoted(repr_of(error))}") from None
        try:
            body = parse_json(response.body or b"null")
        except ValueError:
            body = None
        fields = body if isinstance(body, dict) else {}
        token, kind, lifetime = fields.get("access_token"), fields.get("token_type", "Bearer"), fields.get("expires_in")
        if response.code != 200:
            # RFC 6749, section 5.2; the response may quote the request
            said = [fields[name] for name in ("error", "error_description") if fields.get(name)] or [response.reason]
            raise TokenError(": ".join([f"it responds {response.code}", *map(self._quoted, map(str, said))]))
        if not isinstance(token, str) or not TOKEN.fullmatch(token) or str(kind).lower() != "bearer":
            raise TokenError("its response has no access_token of token_type Bearer")
        try:
            lifetime_s = 0.0 if lifetime is None else max(0.0, float(lifetime))
        except (TypeError, ValueError):
            raise TokenError("its response has an expires_in that is not a number of seconds") from None
        self._token = token
        self._renew_at, self._expires_at = requested_at + RENEWED_AFTER * lifetime_s, requested_at + lifetime_s
        return token

    async def _request(self) -> Any:
        from tornado.httpclient import AsyncHTTPClient, HTTPRequest  # takes time, and few processes need it

        name, secret = self._client
        request = HTTPRequest(
            self._endpoint,
            method="POST",
            body=urlencode(self._form),
            headers={"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"},
            # RFC 6749, section 2.3.1
            auth_username=quote_plus(name),
            auth_password=quote_plus(secret),
            connect_timeout=ENDPOINT_TIMEOUT_S,
            request_timeout=ENDPOINT_TIMEOUT_S,
            follow_redirects=False,  # the secret is for this host alone
            ssl_options=ssl.create_default_context() if self._endpoint.startswith("https") else None,
        )
        client = AsyncHTTPClient(force_instance=True, max_body_size=MAX_BYTES)
        try:
            return await client.fetch(request, raise_error=False)
        finally:
            client.close()

    def _quoted(self, text: str) -> str:
        """Returns the beginning of a text of the endpoint, which may quote the request: its form, header or URL."""
        name, _ = self._client
        # the header of the request, whole or cut
        header = (f"{name}:", f"{quote_plus(name)}:")
        return quoted(text, self._secrets, before=header)
