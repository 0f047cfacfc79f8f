"""Asks an OpenAI-compatible endpoint one question, in bounded time and memory. Only this module opens a connection.

It only connects to the configured host: no redirect is followed and no proxy is used. Every error is a `HintError` with
a sentence. The key comes from a file that belongs to the user and that nobody else can read.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from slurm_robust.hint.errors import HintError
from slurm_robust.hint.masking import clean
from slurm_robust.wire import secret_file

MAX_ANSWER_BYTES = 256 << 10
MAX_KEY_BYTES = 4096
_CHUNK_BYTES = 16 << 10
_MAX_SHOWN_CHARS = 200


class _Message(msgspec.Struct):
    content: str


class _Choice(msgspec.Struct):
    message: _Message


class _Completion(msgspec.Struct):
    choices: list[_Choice]


@dataclass(frozen=True)
class Endpoint:
    """The address of the endpoint, and the key for it.

    Attributes:
        path: The path of the completions, after the configured base.
        key: The key, sent as a bearer token; empty for none.
    """

    secure: bool
    host: str
    port: int
    path: str
    model: str
    key: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """The endpoint for people: `host:port`."""
        return f"{self.host}:{self.port}"


def endpoint(url: str, model: str, key_file: str = "") -> Endpoint:
    """Return the endpoint of the configuration.

    Raises:
        HintError: the endpoint cannot be used; the message says which key of the configuration is wrong, and why.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise HintError(f"diagnose.llm.url is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise HintError("diagnose.llm.url must begin with http:// or https:// and a host")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise HintError("diagnose.llm.url must be a base such as http://localhost:11434/v1: no user, `?` or `#`")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise HintError("diagnose.llm.url has characters that no URL has")
    if not model:
        raise HintError("diagnose.llm.model is empty: name a model that the endpoint serves")
    secure = parts.scheme == "https"
    if key_file and not secure and not _is_this_machine(parts.hostname):
        raise HintError("diagnose.llm.key_file needs https: over http anybody on the way could read the key")
    key = read_key(Path(key_file)) if key_file else ""
    path = f"{parts.path.rstrip('/')}/chat/completions"
    return Endpoint(secure, parts.hostname, port or (443 if secure else 80), path, model, key)


def read_key(path: Path) -> str:
    """Return the key in a file that belongs to the user.

    Raises:
        HintError: the file cannot be read, is another user's, or others may read or write it.
    """
    try:
        key = secret_file.read(path.expanduser(), MAX_KEY_BYTES, own=True)
    except (secret_file.SecretFileError, RuntimeError) as error:
        raise HintError(f"the key file: {error}") from None
    if not key.isascii():
        raise HintError(f"the key file: {path} does not hold one word of ASCII")
    return key


def ask(where: Endpoint, body: bytes, timeout_s: float) -> str:
    """Send one question; return the text of the answer.

    Raises:
        HintError: no answer, or an unusable one, came within the time.
    """
    exchange = _Exchange(where, body, time.monotonic() + timeout_s)
    # Name lookups and slow headers have no deadline: another thread waits for them, and is given up in the end.
    thread = threading.Thread(target=exchange.run, name="hint", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        exchange.give_up()
        raise HintError(f"{where.name} gave no whole answer within {timeout_s:.3g} s")
    if exchange.problem or exchange.status is None:
        raise HintError(exchange.problem or f"{where.name} gave no answer")
    if exchange.status != HTTPStatus.OK:
        raise HintError(_refusal(where, exchange.status, exchange.data))
    try:
        return msgspec.json.decode(exchange.data, type=_Completion).choices[0].message.content
    except (msgspec.MsgspecError, UnicodeDecodeError, IndexError, RecursionError):
        raise HintError(f"{where.name} did not answer as /chat/completions does") from None


class _Exchange:
    """One request and its answer, in a thread of its own."""

    def __init__(self, where: Endpoint, body: bytes, deadline_s: float) -> None:
        self.status: int | None = None
        self.data = b""
        self.problem = ""
        self._where = where
        self._body = body
        self._deadline_s = deadline_s
        self._given_up = threading.Event()
        self._connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        """Ask; the result is in the attributes."""
        where = self._where
        try:
            self._ask()
        except (OSError, http.client.HTTPException, ValueError) as error:
            text = clean(getattr(error, "strerror", None) or str(error) or type(error).__name__, _MAX_SHOWN_CHARS)
            self.problem = f"{where.name} cannot be asked: {text}"
        finally:
            if self._connection is not None:
                self._connection.close()

    def give_up(self) -> None:
        """End the connection, so that the thread ends, too, and nothing more is sent."""
        self._given_up.set()
        opened = self._connection.sock if self._connection is not None else None
        try:
            if opened is not None:
                opened.shutdown(socket.SHUT_RDWR)
        except (OSError, ValueError):
            return

    def _ask(self) -> None:
        where, left_s = self._where, max(0.01, self._deadline_s - time.monotonic())
        if where.secure:
            secure = ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(where.host, where.port, timeout=left_s, context=secure)
        else:
            self._connection = http.client.HTTPConnection(where.host, where.port, timeout=left_s)
        self._connection.connect()
        if self._given_up.is_set():
            return
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if where.key:
            headers["Authorization"] = f"Bearer {where.key}"
        self._connection.request("POST", where.path, self._body, headers)
        with self._connection.getresponse() as response:
            data = bytearray()
            while not self._given_up.is_set() and (chunk := response.read1(_CHUNK_BYTES)):
                data += chunk
                if len(data) > MAX_ANSWER_BYTES:
                    self.problem = f"{where.name} sent more than {MAX_ANSWER_BYTES >> 10} KiB"
                    return
            self.status, self.data = response.status, bytes(data)


def _refusal(where: Endpoint, status: int, data: bytes) -> str:
    try:
        phrase = f" ({HTTPStatus(status).phrase})"
    except ValueError:
        phrase = ""
    if 300 <= status < 400:
        return f"{where.name} answered {status}{phrase}: redirects are not followed; correct diagnose.llm.url"
    said = clean(data.decode("utf-8", "replace"), _MAX_SHOWN_CHARS)
    return f"{where.name} answered {status}{phrase}{': ' if said else ''}{said}"


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
