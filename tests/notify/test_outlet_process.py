"""The process that hands messages over, as the daemon starts it: its rights, its secrets, its end."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from webhook_server import mail_program, serving

from slurm_robust.config.site import NotifyConfig
from slurm_robust.notify.alert import OutletSettings
from slurm_robust.notify.wording import trial


@pytest.fixture
def closed() -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder for all, and what has Python read all of its library through one that only root may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        home = folder / "closed"
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        (home / "lib").mkdir(parents=True)
        (home / "lib" / version).symlink_to(Path(os.__file__).resolve().parent)
        (home / "packages").symlink_to(Path(aiohttp.__file__).parents[1])
        (home / "project").symlink_to(Path(__file__).parents[2])
        home.chmod(0o700)
        yield folder, {**os.environ, "PYTHONHOME": str(home), "PYTHONPATH": f"{home}/project:{home}/packages"}


def line_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What it says next, within a minute."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 60)
    assert ready, "no answer in a minute"
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to drop")
def test_it_delivers_without_rights(closed: tuple[Path, dict[str, str]]) -> None:
    """It has read the secret and loaded all that it needs before it became nobody; it ends with its input."""
    folder, env = closed
    secret = folder / "url"
    with serving() as hook:
        secret.write_text(hook.url)
        secret.chmod(0o600)
        targets = [
            {"name": "chat", "kind": "slack", "url_file": str(secret)},
            {"name": "mail", "kind": "email", "to": ["root"]},
            {"name": "away", "kind": "webhook", "url": "http://no-such-host.invalid/x"},
            {"name": "bad", "kind": "webhook", "url_file": str(folder / "none")},
        ]
        config = {"targets": targets, "sendmail": [str(mail_program(folder))]}
        python: str = sys._base_executable  # type: ignore[attr-defined]
        argv = [python, "-m", "slurm_robust.cli.main", "daemon", "notify"]
        with (folder / "errors").open("wb") as errors:
            # Unbuffered: a second answer that comes with the first must stay where `select` sees it.
            process = subprocess.Popen(
                argv, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=env, cwd=folder
            )
        try:
            assert process.stdin is not None
            lines = [OutletSettings(config), *(trial(str(target["name"]), "main", 5.0) for target in targets)]
            process.stdin.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
            process.stdin.flush()
            answers = {answer["target"]: answer for answer in (line_of(process) for _ in targets)}
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert "\nUid:\t65534\t65534\t65534\t65534" in status
            assert "\nCapEff:\t0000000000000000" in status
            assert {name: answer["ok"] for name, answer in answers.items()} == {
                "chat": True,
                "mail": True,
                "away": False,
                "bad": False,
            }
            process.stdin.close()
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        assert (folder / "errors").read_text() == ""
        assert (folder / "mail").stat().st_uid == 65534
        assert "This is a test" in hook.got[0]["text"]
        assert "verysecret" not in json.dumps(answers)


def test_settings_that_are_none() -> None:
    """A sentence, and no traceback."""
    argv = [sys.executable, "-m", "slurm_robust.cli.main", "daemon", "notify"]
    done = subprocess.run(argv, input=b"what?\n", capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.decode().startswith("Error: cannot begin: ")
    assert msgspec.convert({}, NotifyConfig).user == "nobody"
