"""Targets of `notify` that take no message."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.config.site import Config, parse
from slurm_robust.doctor import targets
from slurm_robust.doctor.advice import Severity


def config(**target: Any) -> Config:
    """One target."""
    wanted = {"name": "oncall", "kind": "webhook", **target}
    return parse(f"notify: {{targets: [{wanted}], sendmail: [/gone/sendmail]}}")


def judged(site: Config, state: dict[str, Any] | None = None) -> tuple[Severity, str]:
    """The level of the one finding, and its sentence."""
    (found,) = targets.check(site, state or {})
    assert found.about == "notify target oncall"
    return found.level, found.sentence


def test_one_that_listens_and_one_that_does_not() -> None:
    """A connection is opened, and nothing is sent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/hook"
        assert judged(config(url=url))[0] is Severity.OK
        taken, _ = server.accept()
        with taken:
            assert taken.recv(1) == b""
    level, said = judged(config(url=url))
    assert level is Severity.WRONG
    assert said.startswith("nobody is told: 127.0.0.1:")
    assert "Connection refused" in said


def test_what_the_daemon_knows_counts_first() -> None:
    """A revoked address takes connections, and no message."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/hook"
        state = {"notify": [{"target": "oncall", "failing_since_s": 1.0, "error": "answered 404"}]}
        assert judged(config(url=url), state) == (Severity.WRONG, "nobody is told: answered 404")


def test_no_mail_program_no_secret_no_name(tmp_path: Path) -> None:
    """Each is said; what only root may read is unknown to others."""
    assert "no mail program /gone/sendmail" in judged(config(kind="email", to=["a@example.org"]))[1]
    assert "its secret cannot be read" in judged(config(url_file=str(tmp_path / "gone")))[1]
    level, said = judged(config(url="http://no-such-name.invalid/hook"))
    assert level is Severity.WRONG
    assert "no-such-name.invalid:80 cannot be reached" in said


def test_a_secret_of_root_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may not read it cannot tell."""

    def refuse(*_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    (found,) = targets.check(config(url_file="/etc/slurm_robust/slack.url"), {})
    assert (found.level, found.fix) == (Severity.UNKNOWN, "sudo srobust notify test --target oncall")


def test_one_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor ends all the same."""
    monkeypatch.setattr(targets, "ALL_S", 0.2)
    forever = threading.Event()
    (found,) = targets.check(config(url="http://a.example/hook"), {}, lambda *_: forever.wait(20) and None)
    forever.set()
    assert found.level is Severity.WRONG
    assert "no answer within" in found.sentence
