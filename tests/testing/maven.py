"""A Maven repository on loopback with scripted failures."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Optional

from allocator.testing.pins import Jar

Rule = Callable[["Request"], bool]


class Request(BaseHTTPRequestHandler):
    """One request. A rule of `MavenRepository.rules` responds with the methods below, or returns False."""

    protocol_version = "HTTP/1.1"
    server: MavenRepository  # type: ignore[assignment]

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization")))
        for rule in self.server.rules:
            if rule(self):
                return
        content = self.server.content(self.path)
        if content is None:
            self.say(404)
        else:
            self.send_file(content)

    def log_message(self, *arguments: object) -> None:
        pass

    def say(self, status: int, body: bytes = b"", **headers: str) -> bool:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return True

    def send_file(self, content: bytes, end: Optional[int] = None) -> bool:
        """Sends the content. With `end`, the connection breaks before that byte."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:end])
        if end is not None:
            self.close_connection = True
        return True


class MavenRepository(ThreadingHTTPServer):
    """`publish` adds files; `seen` lists (path, Authorization) of each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.files: dict[str, bytes] = {}
        self.seen: list[tuple[str, Optional[str]]] = []
        self.rules: list[Rule] = []
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> MavenRepository:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/maven2"

    def publish(self, coordinate: str, content: bytes) -> Jar:
        jar = Jar(coordinate, len(content), hashlib.sha256(content).hexdigest())
        self.files[f"/maven2/{jar.path}"] = content
        return jar

    def content(self, path: str) -> Optional[bytes]:
        return self.files.get(path)

    def rule(self, rule: Rule, times: int = 1) -> None:
        """`rule` handles the next `times` requests."""
        left = [times]

        def limited(request: Request) -> bool:
            if left[0] == 0:
                return False
            left[0] -= 1
            return rule(request)

        self.rules.append(limited)
