"""Messages over HTTP to a real server: what arrives, and what each bad answer comes to; no secret is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from webhook_server import Hook, certificate_of, serving

from slurm_robust.config.notify import NotifyTarget
from slurm_robust.notify import delivery
from slurm_robust.notify.alert import Alert, Delivery, Letter
from slurm_robust.notify.delivery import Address, deliver
from slurm_robust.notify.wording import letter

HOSTILE = Alert(5.0, "stop", "k", "Job 7 <!channel> *x* \u202eevil\x1b[31m\r\nBcc: a@b & <http://evil|click>", job="7")


@pytest.fixture
def hook() -> Iterator[Hook]:
    """A server."""
    with serving() as made:
        yield made


def sent(target: NotifyTarget, alert: Alert = HOSTILE, sendmail: tuple[str, ...] = ()) -> Delivery:
    """One try."""
    made: Letter = letter("t-1", ("t", "main"), [alert], {}, 5.0)

    async def once() -> Delivery:
        async with aiohttp.ClientSession(trust_env=False) as session:
            return await deliver(Address.of(target, sendmail), made, session, lambda: 1_000_000.0)

    return asyncio.run(once())


def slack(hook: Hook, **more: object) -> NotifyTarget:
    """A target for it."""
    return NotifyTarget(name="t", kind="slack", **{"url": hook.url, **more})  # type: ignore[arg-type]


def test_slack_gets_plain_text(hook: Hook) -> None:
    """Markup is escaped, mentions and previews are off, and what is no visible character is not there."""
    assert sent(slack(hook)).ok
    body = hook.got[0]
    assert "&lt;!channel&gt; *x*" in body["text"]
    assert "&amp; &lt;http://evil|click&gt;" in body["text"]
    assert not set(body["text"]) & {"<", ">", "\u202e", "\x1b", "\r"}
    assert (body["mrkdwn"], body["unfurl_links"], body["link_names"]) == (False, False, False)
    assert body["text"].splitlines()[1:] == ["job: 7", "at: 1970-01-01 00:00:05 UTC"]


def test_a_webhook_gets_json_and_a_token(hook: Hook, tmp_path: Path) -> None:
    """The fields of docs/json.md."""
    token = tmp_path / "token"
    token.write_text("s3cret-token\n")
    token.chmod(0o600)
    target = NotifyTarget(name="t", kind="webhook", url=hook.url, token_file=str(token))
    assert sent(target) == Delivery("t-1", "t", ok=True, message="answered 200")
    body = hook.got[0]
    assert (body["version"], body["id"], body["cluster"], body["severity"], body["count"]) == (
        1,
        "t-1",
        "main",
        "warning",
        1,
    )
    assert body["alerts"][0]["event"] == "stop"
    assert body["alerts"][0]["severity"] == "warning"
    assert hook.headers[0]["authorization"] == "Bearer s3cret-token"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((500, {}, "oops"), {"message": "answered 500: oops"}),
        ((503, {}, ""), {"message": "answered 503"}),
        ((429, {"Retry-After": "77"}, "slow down"), {"message": "answered 429: slow down", "retry_after_s": 77.0}),
        (
            (429, {"Retry-After": "Mon, 12 Jan 1970 13:50:00 GMT"}, ""),
            {"message": "answered 429", "retry_after_s": 200.0},
        ),
        ((429, {"Retry-After": "soon"}, ""), {"message": "answered 429"}),
        ((400, {}, "invalid_payload"), {"message": "answered 400: invalid_payload", "final": True}),
        ((404, {}, "no_service"), {"message": "answered 404: no_service"}),
        ((302, {"Location": "/other"}, ""), {"message": "answered 302 (a redirect, which is not followed)"}),
        ((500, {}, "\x1b[2J" + " x" * 5000), {"message": "answered 500: [2J" + " x" * 90 + "…"}),
    ],
)
def test_what_a_bad_answer_comes_to(
    hook: Hook, answer: tuple[int, dict[str, str], str], expected: dict[str, object]
) -> None:
    """Tried again, later, or not at all; a redirect is not followed."""
    hook.answers = [answer]
    found = sent(slack(hook))
    plain = msgspec.structs.replace(found, message=" ".join(found.message.split()))
    assert plain == Delivery("t-1", "t", ok=False, **expected)  # type: ignore[arg-type]
    assert len(hook.got) == 1


def test_a_secret_that_the_other_side_repeats_is_taken_out(hook: Hook, tmp_path: Path) -> None:
    """Neither the URL nor its path gets into a log."""
    url = tmp_path / "url"
    url.write_text(hook.url + "\n")
    url.chmod(0o600)
    hook.answers = [(404, {}, f"no {hook.url} here, not /services/T000/B000/verysecret")]
    found = sent(slack(hook, url="", url_file=str(url)))
    assert "verysecret" not in found.message
    assert found.message.startswith("answered 404: no … here")


def test_a_server_that_hangs_or_is_away(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for longer than the limit."""
    monkeypatch.setattr(delivery, "TIMEOUT_S", 0.3)
    hook.hang.clear()
    assert sent(slack(hook)).message == "no answer in time"
    hook.hang.set()
    gone = sent(slack(hook, url="http://127.0.0.1:1/x"))
    assert gone.message.startswith("127.0.0.1:1 cannot be reached: ")
    assert not gone.final


def test_a_certificate_is_checked(tmp_path: Path) -> None:
    """One that no authority has signed is refused, unless the site names it; one for another name always."""
    certificate = certificate_of(tmp_path)
    with serving(certificate) as hook:
        refused = sent(slack(hook))
        assert not refused.ok
        assert refused.message.startswith("the certificate of localhost is not accepted: ")
        assert hook.got == []
        assert sent(slack(hook, ca_file=str(tmp_path / "cert.pem"))).ok
        other = hook.url.replace("localhost", "127.0.0.1")
        assert not sent(slack(hook, ca_file=str(tmp_path / "cert.pem"), url=other)).ok
    missing = sent(NotifyTarget(name="t", kind="slack", url="https://localhost/x", ca_file=str(tmp_path / "none")))
    assert "has no certificates that can be used" in missing.message


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("https://a/b", 0o644, "chmod 600"),
        ("", 0o600, "does not hold one word on one line"),
        ("https://a/b\nhttps://c/d", 0o600, "does not hold one word on one line"),
        ("x" * 5000, 0o600, "does not hold one word on one line"),
        ("file:///etc/passwd", 0o600, "has no URL that begins with https:// or http://"),
    ],
)
def test_files_with_secrets(tmp_path: Path, text: str, mode: int, message: str) -> None:
    """What is wrong with one is said at each try, without what it has."""
    file = tmp_path / "secret"
    file.write_text(text)
    file.chmod(mode)
    found = sent(NotifyTarget(name="t", kind="slack", url_file=str(file)))
    assert message in found.message
    assert text[:8] not in found.message or not text
