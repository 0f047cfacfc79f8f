from __future__ import annotations

import os
import socket
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from llm_server import completes, sends, serving

from slurm_robust.hint.client import MAX_ANSWER_BYTES, ask, endpoint, read_key
from slurm_robust.hint.errors import HintError

SOON_S = 10.0


def test_a_good_answer_is_its_text() -> None:
    """The path behind the base, JSON, and no key where none is configured."""
    with serving(completes("yes")) as server:
        assert ask(endpoint(server.url + "/", "m"), b'{"model": "m"}', SOON_S) == "yes"
    assert server.asked == [{"model": "m", "path": "/v1/chat/completions"}]
    assert "Authorization" not in server.headers[0]


def test_the_key_is_sent_from_its_file_and_shown_nowhere(tmp_path: Path) -> None:
    """As a bearer token; an endpoint that is printed does not show it."""
    path = tmp_path / "key"
    path.write_text("s3cr3t-key\n")
    path.chmod(0o600)
    with serving(sends(b"wrong key s3cr3t-key: password=s3cr3t-key", 401)) as server:
        where = endpoint(server.url, "m", str(path))
        assert "s3cr3t" not in repr(where)
        with pytest.raises(HintError, match=r"answered 401 \(Unauthorized\): wrong key") as error:
            ask(where, b"{}", SOON_S)
    assert "password=<secret>" in str(error.value)
    assert server.headers[0]["Authorization"] == "Bearer s3cr3t-key"


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    """Nor one that is no plain file, holds no key, or is not there."""
    path = tmp_path / "key"
    path.write_text("abc")
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(HintError, match="chmod 600"):
            read_key(path)
    path.chmod(0o600)
    assert read_key(path) == "abc"
    for text in ("", "a b", "a\nb", "a\x00b", "é", "x" * 5000):
        path.write_text(text)
        with pytest.raises(HintError, match="does not hold one word"):
            read_key(path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, why in (
        ("pipe", "not a plain file"),
        ("none", "cannot be read"),
        (".", "not a plain file"),
        ("\0", "cannot be"),
    ):
        with pytest.raises(HintError, match=why):
            read_key(tmp_path / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_key_of_another_user_is_not_used(tmp_path: Path) -> None:
    """Whoever put it there may want to see what is asked."""
    path = tmp_path / "key"
    path.write_text("abc")
    path.chmod(0o600)
    os.chown(path, 12345, -1)
    with pytest.raises(HintError, match="belongs to another user"):
        read_key(path)


@pytest.mark.parametrize(
    "url",
    ["", "localhost:11434", "file:///etc/passwd", "ftp://x/v1", "http://", "http://u:p@x/v1", "http://x/v1?a=b",
     "http://x:99999/v1", "http://x/v1#a", "http://x/v 1", "http://x/\u00e9", "http://[::1"],
)  # fmt: skip
def test_what_is_no_plain_base_is_refused(url: str) -> None:
    """With the key of the configuration that is wrong."""
    with pytest.raises(HintError, match=r"diagnose\.llm\.url"):
        endpoint(url, "m")


def test_a_key_goes_over_https_or_stays_on_this_machine(tmp_path: Path) -> None:
    """A key on the wire in plain text is everybody's."""
    path = tmp_path / "key"
    path.write_text("abc")
    path.chmod(0o600)
    for url in ("https://h/v1", "http://localhost:1/v1", "http://127.0.0.1/v1", "http://[::1]/v1"):
        assert endpoint(url, "m", str(path)).key == "abc"
    with pytest.raises(HintError, match="needs https"):
        endpoint("http://h/v1", "m", str(path))
    with pytest.raises(HintError, match=r"diagnose\.llm\.model"):
        endpoint("https://h/v1", "")


def test_a_redirect_is_not_followed() -> None:
    """The other host gets nothing."""
    with serving(completes("stolen")) as other, serving(sends(b"", 307, Location=other.url)) as server:
        with pytest.raises(HintError, match="redirects are not followed"):
            ask(endpoint(server.url, "m"), b"{}", SOON_S)
        assert other.asked == []


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is announced is asked, and nobody between."""
    with serving(completes("yes")) as server, serving(completes("proxied")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert ask(endpoint(server.url, "m"), b"{}", SOON_S) == "yes"


def test_an_enormous_answer_is_cut_off() -> None:
    """With and without its length announced, also one without end."""
    big = b"x" * (MAX_ANSWER_BYTES + 1)

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(big)

    for reply in (sends(big), endless, sends(big, 500)):
        with serving(reply) as server, pytest.raises(HintError, match="sent more than 256 KiB"):
            ask(endpoint(server.url, "m"), b"{}", SOON_S)


def test_a_slow_server_costs_the_time_that_was_given() -> None:
    """One that says nothing, one whose headers drip, one that stops within its answer."""
    with serving() as server:

        def silent(handler: BaseHTTPRequestHandler) -> None:
            server.released.wait(60)

        def half(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", "100")
            handler.end_headers()
            handler.wfile.write(b"{")
            server.released.wait(60)

        def headers_that_drip(handler: BaseHTTPRequestHandler) -> None:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not server.released.wait(0.02):  # each byte comes in time, all of them never
                handler.wfile.write(b"x")
                handler.wfile.flush()

        server.replies = [silent, half, headers_that_drip]
        for _ in server.replies:
            began_s = time.monotonic()
            with pytest.raises(HintError, match=r"no whole answer within 0\.3 s|cannot be asked: timed out"):
                ask(endpoint(server.url, "m"), b"{}", 0.3)
            assert time.monotonic() - began_s < 5


def test_nobody_there_is_a_sentence() -> None:
    """A port that nobody listens on, a name that nobody knows, a server that hangs up."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(HintError, match="cannot be asked: Connection refused"):
            ask(endpoint(url, "m"), b"{}", SOON_S)
    with pytest.raises(HintError, match=r"nowhere\.invalid:80"):
        ask(endpoint("http://nowhere.invalid/v1", "m"), b"{}", SOON_S)
    with (
        serving(lambda handler: handler.connection.close()) as server,
        pytest.raises(HintError, match="cannot be asked"),
    ):
        ask(endpoint(server.url, "m"), b"{}", SOON_S)


def test_a_server_without_a_certificate_is_a_sentence() -> None:
    """What was to be kept from others is not sent in plain text instead."""
    with serving(completes("yes")) as server:
        url = server.url.replace("http:", "https:")
        with pytest.raises(HintError, match="cannot be asked"):
            ask(endpoint(url, "m"), b"{}", SOON_S)
        assert server.asked == []


@pytest.mark.parametrize(
    "data",
    [b"", b"no JSON", b"[]", b'{"choices": []}', b'{"choices": [{"message": {"content": null}}]}', b"[" * 100_000,
     b'{"choices": [{"message": {"content": "\xff"}}]}', b'{"choices": 1e999}', b"\x1f\x8b\x08"],
)  # fmt: skip
def test_what_is_no_completion_is_a_sentence(data: bytes) -> None:
    """Other JSON, none, too deep, broken characters, compressed."""
    with serving(sends(data)) as server, pytest.raises(HintError, match="did not answer as /chat/completions does"):
        ask(endpoint(server.url, "m"), b"{}", SOON_S)


def test_what_is_no_http_is_a_sentence() -> None:
    """A server of another protocol, and a status that does not exist."""

    def other(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        handler.connection.shutdown(socket.SHUT_RDWR)

    with serving(other) as server, pytest.raises(HintError, match="cannot be asked"):
        ask(endpoint(server.url, "m"), b"{}", SOON_S)
    with serving(sends(b"\x1b[31mred", 599)) as server, pytest.raises(HintError, match=r"answered 599: \[31mred"):
        ask(endpoint(server.url, "m"), b"{}", SOON_S)
