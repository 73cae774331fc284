"""Authenticates a connection by SASL, with kafka-python's mechanisms."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kafka.errors import KafkaError
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslBytesRequest, SaslHandshakeRequest

from allocator.core.aio.tasks import settle, within
from allocator.core.client.errors import ConnectionFailed, ErrorCode, RequestFailed, refused
from allocator.core.client.masking import quoted
from allocator.core.client.oauth import SOURCE_OF_AWS, TokenError, TokenProvider
from allocator.core.text.quoting import repr_of

log = logging.getLogger(__name__)

SHORTEST_LIFETIME_S: Final = 1.0  # minimum lifetime of an authentication
MIN_ITERATIONS: Final = 4096  # of SCRAM (RFC 7677, section 4). Lower: who reads a login guesses the password sooner
CREDENTIALS_PAUSE_S: Final = 5.0  # between attempts to renew credentials. Higher: fewer calls of a token provider
# secrets that a message of OAUTHBEARER or AWS_MSK_IAM has
SENT: Final = re.compile(r'(?:auth=Bearer |"x-amz-security-token":"|"x-amz-signature":")([^\x01"]+)')

Begun = tuple[Any, bytes]
"""A mechanism and its first message to the broker."""


class Sasl:
    """Authenticates a connection to `host`. `send(request, timeout_s)` sends a request and returns the response.

    The holder of `turn`, a lock of all connections of a client, creates the next message of a mechanism.
    """

    def __init__(
        self, host: str, security: Mapping[str, Any], turn: threading.Lock, send: Callable[[Any, float], Awaitable[Any]]
    ) -> None:
        self._host = host
        self._security = security
        self._name: str = security["sasl_mechanism"]
        self._turn = turn
        self._send = send
        self._provider = security.get("sasl_oauth_token_provider")
        source = SOURCE_OF_AWS if self._name == "AWS_MSK_IAM" else self._provider
        credentials = self._name if source is None else f"{self._name} from {source}"
        self._sent: list[str] = []  # secrets of the last message that had some
        self._lacking = f"no credentials for {credentials}"
        self.lacks = ""
        """Why the connection is not ready yet, while it waits for credentials; else ""."""

    async def authenticate(self, timeout_s: float, begun: Begun | None = None) -> float:
        """Authenticates, and returns the seconds until the authentication expires; 0: never.

        `begun` is the result of `begin_before`. Raises `RequestFailed`.
        """
        handshake = await self._send(SaslHandshakeRequest(mechanism=self._name, max_version=1), timeout_s)
        if handshake.error_code:
            raise refused(handshake.error_code)
        if self._name not in handshake.mechanisms:
            raise refused(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                f"the broker does not support the SASL mechanism {self._name}; it supports {handshake.mechanisms}",
            )
        mechanism, first = begun or (self._mechanism(), None)
        framed = handshake.API_VERSION >= 1  # in v0, tokens are sent without a request header
        lifetime_ms = 0
        while not mechanism.is_done():
            token, first = await self._message(mechanism, timeout_s) if first is None else first, None
            request = SaslAuthenticateRequest(token) if framed else SaslBytesRequest(token)
            response = await self._send(request, timeout_s)
            if response.error_code:
                if isinstance(self._provider, TokenProvider):
                    self._provider.refused()
                why = self._quoted(response.error_message or "")
                raise refused(ErrorCode.SASL_AUTHENTICATION_FAILED, why)
            if framed:
                lifetime_ms = response.session_lifetime_ms or 0
            elif mechanism.is_done():
                break  # the last token of GSSAPI is empty
            try:
                mechanism.receive(self._checked(response.auth_bytes))
            except (KeyError, ValueError) as exc:
                why = f"the broker does not prove its identity by {self._name}: {self._quoted(repr_of(exc))}"
                raise refused(ErrorCode.SASL_AUTHENTICATION_FAILED, why) from None
        if not mechanism.is_authenticated():
            why = f"cannot authenticate with the SASL mechanism {self._name}"
            raise refused(ErrorCode.SASL_AUTHENTICATION_FAILED, why)
        return max(SHORTEST_LIFETIME_S, lifetime_ms / 1000) if lifetime_ms > 0 else 0.0

    async def begin_before(self, expires_at: float, timeout_s: float) -> Begun:
        """Returns a mechanism and its first message. Retries until shortly before `expires_at`."""
        level = logging.WARNING
        while True:
            left_s = max(SHORTEST_LIFETIME_S, expires_at - time.monotonic())
            mechanism = self._mechanism()
            try:
                return mechanism, await self._message(mechanism, min(left_s, timeout_s))
            except ConnectionFailed as exc:
                if time.monotonic() + CREDENTIALS_PAUSE_S >= expires_at:
                    raise
                log.log(level, "%s: %s; trying again until the session ends", self._host, exc)
                level = logging.DEBUG
                await asyncio.sleep(CREDENTIALS_PAUSE_S)

    def _checked(self, message: bytes) -> bytes:
        """Returns what kafka-python gets of a broker's message. Raises an error for a message that ends the login."""
        if self._name.startswith("SCRAM"):
            fields = {name: value for name, _, value in (field.partition("=") for field in message.decode().split(","))}
            why = ""
            if "e" in fields:
                why = f"the broker ends the login: {self._quoted(fields['e'])}"
            elif "i" in fields and int(fields["i"]) < MIN_ITERATIONS:
                why = f"the broker offers {int(fields['i'])} iterations of {self._name}; {MIN_ITERATIONS} is the least"
            if why:
                raise refused(ErrorCode.SASL_AUTHENTICATION_FAILED, why)
        elif self._name == "OAUTHBEARER":
            return self._quoted(message.decode(errors="replace")).encode()  # kafka-python logs it
        return message

    def _quoted(self, text: str) -> str:
        """Returns the beginning of a text of the broker or of a token provider, without secrets."""
        security = self._security
        before = (f"\0{security['sasl_plain_username']}\0",) if self._name == "PLAIN" else ("auth=Bearer ",)
        secrets = (str(security.get("sasl_plain_password") or ""), *self._sent)
        return quoted(text, secrets, before=before, guess=self._name in ("OAUTHBEARER", "AWS_MSK_IAM"))

    def _mechanism(self) -> Any:
        settings = {"sasl_kerberos_service_name": "kafka", **self._security}
        if self._name.startswith("SCRAM"):
            # RFC 5802, section 5.1: these characters have a meaning in a message. kafka-python sends the name as it is
            name = settings["sasl_plain_username"]
            settings["sasl_plain_username"] = name.replace("=", "=3D").replace(",", "=2C")
        if self._name == "PLAIN":
            # kafka-python would warn of clear text for each connection; `warn_of_clear_text` warned once
            settings.pop("security_protocol", None)
        try:
            return get_sasl_mechanism(self._name)(host=self._host, **settings)
        except (KafkaError, RuntimeError, ValueError) as exc:  # a package or a setting is missing
            failed = RequestFailed(f"SASL mechanism {self._name}: {exc}")
            failed.retriable = False
            raise failed from exc

    async def _message(self, mechanism: Any, timeout_s: float) -> bytes:
        """Returns the next message to the broker, created in a thread: a token provider may block or fail."""
        loop = asyncio.get_running_loop()
        made: asyncio.Future[bytes] = loop.create_future()

        def make() -> None:
            result, error = b"", None
            if not self._turn.acquire(timeout=max(0.0, timeout_s)):
                return  # an earlier call hangs. Another one could hang too, and each would keep a thread
            try:
                result = b"" if made.done() else mechanism.auth_bytes()
            except BaseException as exc:  # noqa: BLE001 - the user's provider; nobody else would see the error
                known = isinstance(exc, TokenError)  # its secrets are masked
                why = str(exc) if known else self._quoted(repr_of(exc))
                error = ConnectionFailed(f"{self._lacking}: {why}")
            finally:
                self._turn.release()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, made, result, error)

        self.lacks = f"{self._lacking} yet"
        # a daemon thread, so that a provider that hangs does not keep the process alive
        threading.Thread(target=make, name="allocator-sasl", daemon=True).start()
        try:
            message = await within(made, timeout_s)
        except asyncio.TimeoutError:
            raise ConnectionFailed(f"{self._lacking} within {timeout_s:.1f} s") from None
        self.lacks = ""
        self._sent = SENT.findall(message.decode(errors="replace")) or self._sent
        return message
