"""`srobust notify test`: a message by the daemon's own way, and what came back."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from webhook_server import mail_program, serving

from slurm_robust.cli.main import cli
from slurm_robust.config.site import ConfigError, parse
from slurm_robust.doctor import targets


def test_each_target_says_what_came_back(tmp_path: Path) -> None:
    """One takes it, one is away, one sleeps; the exit code says that not all is well."""
    tmp_path.chmod(0o777)
    with serving() as hook:
        targets = [
            {"name": "chat", "kind": "slack", "url": hook.url},
            {"name": "pager", "kind": "webhook", "url": hook.url},
            {"name": "away", "kind": "webhook", "url": "http://127.0.0.1:1/x"},
        ]
        path = tmp_path / "robust.yaml"
        path.write_text(yaml.safe_dump({"cluster": "main", "notify": {"targets": targets}}))
        done = CliRunner().invoke(cli, ["notify", "test", "--config", str(path)])
        assert done.exit_code == 1
        first, _, second = done.stdout.splitlines()
        assert first == "chat: delivered: answered 200"
        assert second.startswith("away: NOT DELIVERED: 127.0.0.1:1 cannot be reached: ")
        chat, page = sorted(hook.got, key=lambda body: "alerts" in body)
        assert chat["text"].startswith("[srobust/main] info: This is a test: messages for this target arrive\n")
        assert page["alerts"][0]["event"] == "test", "no event of a cluster: a program must not act on it"


def test_quiet_hours_do_not_hold_a_test_up(tmp_path: Path) -> None:
    """But they are told, also to programs."""
    target = {"name": "mail", "kind": "email", "to": ["root"], "quiet_hours": "00:00-00:00"}
    notify = {"targets": [target], "sendmail": [str(mail_program(tmp_path))], "user": "root"}
    path = tmp_path / "robust.yaml"
    path.write_text(yaml.safe_dump({"notify": notify}))
    done = CliRunner().invoke(cli, ["notify", "test", "--json", "--target", "mail", "--config", str(path)])
    (row,) = json.loads(done.stdout)
    assert row == {
        "target": "mail",
        "kind": "email",
        "ok": True,
        "message": "sendmail has taken it",
        "quiet": True,
        "time_zone_known": True,
    }
    assert done.exit_code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act for another account")
def test_the_test_has_the_rights_of_the_daemons_account(tmp_path: Path) -> None:
    """Root may read a secret that the daemon may not: delivered by root would say nothing of the daemon."""
    tmp_path.chmod(0o777)
    state, secret = tmp_path / "state", tmp_path / "url"
    state.mkdir()
    os.chown(state, pwd.getpwnam("nobody").pw_uid, -1)
    secret.write_text("http://127.0.0.1:1/x")
    secret.chmod(0o600)
    path = tmp_path / "robust.yaml"
    target = {"name": "chat", "kind": "slack", "url_file": str(secret)}
    path.write_text(yaml.safe_dump({"daemon": {"state_dir": str(state)}, "notify": {"targets": [target]}}))
    done = CliRunner().invoke(cli, ["notify", "test", "--config", str(path)])
    why = f"the daemon, whose user is nobody, may not read {secret}: chown nobody {secret}; systemctl reload srobustd"
    assert (done.exit_code, done.stdout) == (1, f"chat: NOT DELIVERED: {why}\n")
    (found,) = targets.check(parse(path.read_text()), {})
    assert (found.sentence, found.fix) == (f"nobody is told: {why}", "srobust notify test --target chat")
    os.chown(secret, pwd.getpwnam("nobody").pw_uid, -1)
    assert "chown" not in CliRunner().invoke(cli, ["notify", "test", "--config", str(path)]).stdout


def test_no_target_or_another_one(tmp_path: Path) -> None:
    """What to type next."""
    path = tmp_path / "robust.yaml"
    path.write_text("{}")
    done = CliRunner().invoke(cli, ["notify", "test", "--config", str(path)])
    assert (done.exit_code, "notify.targets" in done.stderr) == (1, True)
    path.write_text("notify: {targets: [{name: a, kind: email, to: [root]}]}")
    done = CliRunner().invoke(cli, ["notify", "test", "--target", "b", "--config", str(path)])
    assert (done.exit_code, "there are: a" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{name: A b, kind: email, to: [root]}", "notify.targets"),
        ("{name: a, kind: email}", "target a: email needs `to`"),
        ("{name: a, kind: slack}", "slack needs either `url` or `url_file`"),
        ("{name: a, kind: slack, url: 'http://x/', url_file: /y}", "slack needs either `url` or `url_file`"),
        ("{name: a, kind: slack, url: 'file:///etc/passwd'}", "url"),
        ("{name: a, kind: slack, url: 'http://user:pw@host/'}", "url"),
        ("{name: a, kind: email, to: ['-oQ/tmp']}", "to"),
        ("{name: a, kind: email, to: ['a@b, c@d']}", "to"),
        ("{name: a, kind: email, to: [root], quiet_hours: '25:00-07:00'}", "quiet_hours"),
        ("{name: a, kind: email, to: [root], events: [everything]}", "events"),
        ("{name: a, kind: email, to: [root], per_hour: 0}", "per_hour"),
        ("{name: a, kind: email, to: [root]}, {name: a, kind: email, to: [root]}", "two targets are called a"),
        ("{name: a, kind: email, to: [root], url_flie: /x}", "url_flie"),
    ],
)
def test_a_wrong_target_is_named(target: str, message: str) -> None:
    """With file, line and key, before anything is started."""
    with pytest.raises(ConfigError, match=r"^robust.yaml:\d+: notify") as error:
        parse(f"notify:\n  targets: [{target}]\n")
    assert message in str(error.value)
