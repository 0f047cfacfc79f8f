"""Messages by the local mail program."""

from __future__ import annotations

import email
import email.policy
from pathlib import Path

import pytest
from test_delivery_http import HOSTILE, sent
from webhook_server import mail_program

from slurm_robust.config.notify import NotifyTarget
from slurm_robust.notify import delivery

OPS = NotifyTarget(name="t", kind="email", to=("ops@example.org", "root"))


def test_a_mail(tmp_path: Path) -> None:
    """Its recipients are the configuration's alone; a text that tries to add a header stays in its line."""
    program = mail_program(tmp_path)
    found = sent(OPS, HOSTILE, (str(program), "-t", "-oi"))
    assert found.ok
    assert (tmp_path / "arguments").read_text() == "-t -oi\n"
    mail = email.message_from_bytes((tmp_path / "mail").read_bytes(), policy=email.policy.default)
    assert mail["To"] == "ops@example.org, root"
    assert mail["Bcc"] is None
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail["Subject"].startswith("[srobust/main] warning: Job 7 <!channel>")
    assert "\nBcc:" not in mail.get_content()
    assert mail.get_content().splitlines()[2:] == ["job: 7", "at: 1970-01-01 00:00:05 UTC"]


def test_a_mail_program_that_fails_or_hangs_or_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said is told; one that hangs is ended with its children."""
    program = mail_program(tmp_path, "echo queue is full >&2; exit 75")
    found = sent(OPS, HOSTILE, (str(program),))
    assert (found.ok, found.message) == (False, "sendmail exited with 75: queue is full")
    monkeypatch.setattr(delivery, "MAIL_TIMEOUT_S", 0.2)
    program = mail_program(tmp_path, "sleep 100")
    assert sent(OPS, HOSTILE, (str(program),)).message == "no answer in time"
    missing = tmp_path / "none"
    said = f"there is no {missing}: install a mail program, or name yours in notify.sendmail"
    assert sent(OPS, HOSTILE, (str(missing),)).message == said


def test_a_mail_program_of_root_is_not_ours_to_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mail that it has taken is not sent again because a child of it goes on; one that is slow is too slow."""

    def refused(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(delivery.os, "killpg", refused)
    assert sent(OPS, HOSTILE, (str(mail_program(tmp_path)),)).ok
    monkeypatch.setattr(delivery, "MAIL_TIMEOUT_S", 0.2)
    assert sent(OPS, HOSTILE, (str(mail_program(tmp_path, "sleep 0.6")),)).message == "no answer in time"
