"""A local HTTP server that speaks the protocol of `/chat/completions`, and answers as a test wants: well, or badly."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class LlmServer:
    """Answers each request with the next reply, and the last one from then on.

    Attributes:
        asked: The bodies of all requests, parsed.
        headers: Theirs.
        released: Replies that wait go on once this is set; it is at the end of the test.
    """

    replies: list[Reply]
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def next_reply(self) -> Reply:
        """What answers the request that was just noted."""
        return self.replies[min(len(self.asked), len(self.replies)) - 1]


@contextmanager
def serving(*replies: Reply) -> Iterator[LlmServer]:
    """A server on a free port of this machine."""
    server = LlmServer(list(replies))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.asked.append(json.loads(body) | {"path": self.path})
            server.headers.append(dict(self.headers))
            try:
                server.next_reply()(self)
            except OSError:
                self.close_connection = True

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        http.block_on_close = False
        server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            http.shutdown()
            thread.join(10)


def sends(data: bytes, status: int = 200, **headers: str) -> Reply:
    """A reply of these bytes."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return reply


def completes(content: object) -> Reply:
    """A well-formed completion with this content."""
    return sends(json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode())


def answers(category: str, line: int = 0, cause: str = "it broke", pattern: str = "", another: str = "") -> Reply:
    """A completion that is an answer as it was asked for."""
    answer = {"category": category, "cause": cause, "line": line, "pattern": pattern, "another": another}
    return completes(json.dumps(answer))
