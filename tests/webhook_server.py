"""An HTTP server on this machine that answers as it is told, with or without TLS; a mail program that keeps mails."""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Hook:
    """What it answers next (the last answer stays), and what it got."""

    port: int = 0
    scheme: str = "http"
    answers: list[tuple[int, dict[str, str], str]] = field(default_factory=lambda: [(200, {}, "ok")])
    got: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    hang: threading.Event = field(default_factory=threading.Event)
    """Set where it answers; cleared, it reads a request and is silent."""

    @property
    def url(self) -> str:
        """Its address, with a secret in it."""
        return f"{self.scheme}://localhost:{self.port}/services/T000/B000/verysecret"


@contextlib.contextmanager
def serving(certificate: Path | None = None) -> Iterator[Hook]:
    """Serve until the end of the block."""
    hook = Hook()
    hook.hang.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.headers.append({key.lower(): value for key, value in self.headers.items()})
            hook.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            hook.hang.wait(30)
            status, headers, body = hook.answers.pop(0) if len(hook.answers) > 1 else hook.answers[0]
            with contextlib.suppress(OSError):
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body.encode())), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body.encode())

        def do_GET(self) -> None:
            """Nobody should come."""
            hook.got.append({"GET": self.path})

        def log_message(self, *_: object) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that does not trust us goes away: expected."""

    server = Server(("127.0.0.1", 0), Handler)
    hook.port = server.server_port
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        hook.scheme = "https"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02), daemon=True)
    thread.start()
    try:
        yield hook
    finally:
        hook.hang.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


def certificate_of(folder: Path) -> Path:
    """A key and a certificate for localhost that no authority has signed, in one file."""
    key, certificate, both = (folder / name for name in ("key.pem", "cert.pem", "both.pem"))
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*argv, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=30)
    both.write_text(key.read_text() + certificate.read_text())
    return both


def mail_program(folder: Path, ending: str = "exit 0") -> Path:
    """Stands in for sendmail: keeps its arguments and the mail in files of this folder, and ends so."""
    program = folder / "sendmail"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" > {folder}/arguments\ncat > {folder}/mail\n{ending}\n')
    program.chmod(0o755)
    return program
