"""Hands one message to a target: a Slack webhook, a site's own webhook, or the local mail program.

Certificates are checked, redirects are not followed, and the answer of the other side is cut. Every secret text is
removed from reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import os
import signal
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from slurm_robust.config.notify import NotifyTarget
from slurm_robust.notify.alert import Alert, Delivery, Letter
from slurm_robust.notify.wording import plain
from slurm_robust.wire import secret_file

TIMEOUT_S = 20.0
MAIL_TIMEOUT_S = 60.0
LAST_S = 2.0
"""The time that the mail program has to end after its SIGKILL."""
SECRET_BYTES = 4096
ANSWER_BYTES = 2048
SAID_CHARS = 200
SECRET_CHARS = 6
"""Shorter texts are no secrets, and would be taken out of other words."""
NOT_THIS_MESSAGE = (400, 413, 414, 415, 422)
"""Answers that the same message would get again."""
OK = range(200, 300)
REDIRECTS = range(300, 400)


@dataclass(frozen=True)
class Address:
    """A target with its secrets, read while they could be."""

    target: NotifyTarget
    sendmail: tuple[str, ...] = ()
    url: str = ""
    token: str = ""
    tls: ssl.SSLContext | None = None
    problem: str = ""

    @classmethod
    def of(cls, target: NotifyTarget, sendmail: tuple[str, ...]) -> Address:
        """Read the target's secrets and files; keep a problem, so that it is told at every try."""
        try:
            url = target.url or (secret_file.read(target.url_file, SECRET_BYTES) if target.url_file else "")
            token = secret_file.read(target.token_file, SECRET_BYTES) if target.token_file else ""
            if url and not url.startswith(("https://", "http://")):
                return cls(target, problem=f"{target.url_file} has no URL that begins with https:// or http://")
            tls = ssl.create_default_context(cafile=target.ca_file or None) if url else None
        except secret_file.SecretFileError as error:
            # Secrets are read before root is given up: mended files are read when the process begins again.
            return cls(target, problem=f"{error}; once that is mended: systemctl reload srobustd")
        except (OSError, ssl.SSLError) as error:
            return cls(target, problem=f"{target.ca_file} has no certificates that can be used ({error})")
        return cls(target, sendmail, url, token, tls)

    def without_secrets(self, text: str) -> str:
        """Return a text for the log, without secrets."""
        path = self.url.split("/", 3)[3] if self.url.count("/") > 2 else ""
        for secret in (self.url, path, self.token):
            text = text.replace(secret, "…") if len(secret) >= SECRET_CHARS else text
        return plain(text, SAID_CHARS)


async def deliver(
    address: Address, letter: Letter, session: aiohttp.ClientSession, clock: Callable[[], float]
) -> Delivery:
    """Try once; never raises."""
    if address.problem:
        return Delivery(letter.id, address.target.name, ok=False, message=address.problem)
    try:
        if address.target.kind == "email":
            return await _mail(address, letter)
        return await _post(address, letter, session, clock)
    except asyncio.TimeoutError:
        message = "no answer in time"
    except aiohttp.ClientConnectorCertificateError as error:
        message = f"the certificate of {error.host} is not accepted: {error.certificate_error}; see ca_file"
    except aiohttp.ClientConnectorError as error:
        message = f"{error.host}:{error.port} cannot be reached: {error.os_error.strerror or error.os_error}"
    except FileNotFoundError as error:
        message = f"there is no {error.filename}: install a mail program, or name yours in notify.sendmail"
    except Exception as error:  # noqa: BLE001 (the daemon waits for an answer after any error, too)
        message = f"{type(error).__name__}: {error}"
    return Delivery(letter.id, address.target.name, ok=False, message=address.without_secrets(message))


# --- HTTP


def slack_body(letter: Letter) -> dict[str, Any]:
    """Return the object that Slack's incoming webhooks take; nothing in it is markup, a mention or a preview."""
    text = "\n".join((letter.subject, *letter.lines))
    for mark, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(mark, name)
    return {"text": text, "mrkdwn": False, "unfurl_links": False, "unfurl_media": False, "link_names": False}


def webhook_body(letter: Letter) -> dict[str, Any]:
    """Return the message as JSON; docs/json.md has its fields."""
    alerts = [{**msgspec.to_builtins(alert), "severity": alert.severity} for alert in letter.alerts]
    return {
        "version": 1,
        "id": letter.id,
        "target": letter.target,
        "cluster": letter.cluster,
        "severity": letter.severity,
        "at_s": letter.at_s,
        "subject": letter.subject,
        "text": "\n".join(letter.lines),
        "count": letter.count,
        "alerts": alerts,
    }


async def _post(
    address: Address, letter: Letter, session: aiohttp.ClientSession, clock: Callable[[], float]
) -> Delivery:
    target = address.target
    body = slack_body(letter) if target.kind == "slack" else webhook_body(letter)
    headers = {"Content-Type": "application/json", "User-Agent": "slurm-robust"}
    if address.token:
        headers["Authorization"] = f"Bearer {address.token}"
    async with session.post(
        address.url,
        data=msgspec.json.encode(body),
        headers=headers,
        ssl=address.tls if address.tls is not None else True,
        proxy=target.proxy or None,
        allow_redirects=False,
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
    ) as answer:
        said = (await answer.content.read(ANSWER_BYTES)).decode("utf-8", "replace")
        status, wait_s = answer.status, retry_after_s(answer.headers, clock())
    if status in OK:
        return Delivery(letter.id, target.name, ok=True, message=f"answered {status}")
    message = f"answered {status}"
    message += " (a redirect, which is not followed)" if status in REDIRECTS else f": {said}" if said else ""
    return Delivery(
        letter.id,
        target.name,
        ok=False,
        message=address.without_secrets(message),
        final=status in NOT_THIS_MESSAGE,
        retry_after_s=wait_s,
    )


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float:
    """Return `Retry-After` in seconds, from seconds or a date; 0 if it is neither."""
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal() and len(text) < 10:
        return float(text)
    with contextlib.suppress(ValueError, TypeError, IndexError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now_s)
    return 0.0


# --- mail


def mail_of(letter: Letter, target: NotifyTarget) -> EmailMessage:
    """Return the message for the local mail program, marked so that robots do not answer it."""
    mail, host = EmailMessage(), socket.gethostname()
    mail["From"] = target.sender or f"srobust@{host}"
    mail["To"] = ", ".join(target.to)
    mail["Subject"] = plain(letter.subject, SAID_CHARS)
    mail["Date"] = email.utils.formatdate(letter.at_s)
    mail["Message-ID"] = f"<{letter.id}.{letter.at_s:.0f}.srobust@{host}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content("\n".join((letter.subject, "", *letter.lines)) + "\n")
    return mail


async def rehearse(session: aiohttp.ClientSession) -> None:
    """Do once everything that loads modules when first done: `nobody` may not be able to read the modules later.

    Nothing leaves this machine: no server listens on that port, and the mail goes to a program that ignores it.
    """
    alert = Alert(0.0, "stop", "", "")
    letter = Letter("", "", "", "info", 0.0, "ä", (), alerts=(alert,))
    mail = NotifyTarget(name="mail", kind="email", to=("nobody",))
    await deliver(Address(mail, ("/bin/true",)), letter, session, float)
    for kind in ("slack", "webhook"):
        hook = NotifyTarget(name="hook", kind=kind, url="http://localhost:9/")
        await deliver(Address(hook, url=hook.url), letter, session, float)
    for told in ("Mon, 23 Nov 2026 11:00:00 GMT", "no date"):
        retry_after_s({"Retry-After": told}, 0.0)


async def _mail(address: Address, letter: Letter) -> Delivery:
    name = address.target.name
    process = await asyncio.create_subprocess_exec(
        *address.sendmail,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    text = mail_of(letter, address.target).as_bytes()
    try:
        output, _ = await asyncio.wait_for(process.communicate(text), MAIL_TIMEOUT_S)
    finally:
        # What runs as root is not ours to kill: exim, which goes on with a mail that it has taken.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), LAST_S)
    program = Path(address.sendmail[0]).name
    said = output[-ANSWER_BYTES:].decode("utf-8", "replace")
    state = "has taken it" if process.returncode == 0 else f"exited with {process.returncode}"
    message = f"{program} {state}{': ' if said else ''}{said}"
    return Delivery(letter.id, name, ok=process.returncode == 0, message=address.without_secrets(message))
