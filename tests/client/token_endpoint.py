"""A token endpoint (RFC 6749, client credentials) on 127.0.0.1, whose tokens Kafka's unsecured validator accepts."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus

CLIENT_ID = "billing app"
CLIENT_SECRET = "oauth:s3cret/+Qx9"  # has characters that RFC 6749 encodes


def unsecured_token(lifetime_s: float = 3600, subject: str = "alice") -> str:
    """A JWS without a signature."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    now = time.time() - 0.001  # the broker's clock has milliseconds, so that this one may be ahead by a fraction
    return f"{part({'alg': 'none'})}.{part({'sub': subject, 'iat': now, 'exp': now + lifetime_s})}."


def granted(lifetime_s: float = 3600) -> tuple[int, dict[str, str], str]:
    fields = {"access_token": unsecured_token(lifetime_s), "token_type": "Bearer", "expires_in": lifetime_s}
    return 200, {"Content-Type": "application/json"}, json.dumps(fields)


class TokenEndpoint:
    """A context manager. `respond` returns the status, the headers and the body of the next response."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.respond: Callable[[], tuple[int, dict[str, str], str]] = granted
        self.requests: list[tuple[str, str, dict[str, list[str]]]] = []
        """User, password and form of each request."""
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                kind, _, credentials = self.headers.get("Authorization", "").partition(" ")
                assert kind == "Basic"
                user, _, password = base64.b64decode(credentials).decode().partition(":")
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                endpoint.requests.append((unquote_plus(user), unquote_plus(password), form))
                right = endpoint.requests[-1][:2] == (CLIENT_ID, CLIENT_SECRET)
                refused = 401, {"Content-Type": "application/json"}, '{"error": "invalid_client"}'
                code, headers, body = endpoint.respond() if right else refused
                self.send_response(code)
                for name, value in {**headers, "Content-Length": str(len(body.encode()))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Ignores clients that do not trust the certificate and hang up."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        scheme, host = ("http", "127.0.0.1") if tls is None else ("https", "localhost")
        self.url = f"{scheme}://{host}:{self._server.server_address[1]}/token"

    def settings(self) -> dict[str, str]:
        """The settings of a client."""
        return {
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_endpoint": self.url,
            "sasl_oauth_client_id": CLIENT_ID,
            "sasl_oauth_client_secret": CLIENT_SECRET,
        }

    def __enter__(self) -> TokenEndpoint:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
