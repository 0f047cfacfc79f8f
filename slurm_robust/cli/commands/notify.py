"""`srobust notify`: sends a message to the targets of robust.yaml, and shows what came back."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import threading
import time

import click
import msgspec

from slurm_robust.cli.state import load_config, print_json
from slurm_robust.cli.teaching import lesson
from slurm_robust.config.notify import NotifyTarget
from slurm_robust.config.site import Config

TIMEOUT_S = 120.0
"""Longer than any try may take."""
_EXAMPLES = (
    ("sudo srobust notify test", "a message to every target: did it arrive?"),
    ("sudo srobust notify test --target oncall", "to this one alone"),
)
_EXITS = (
    (0, "every target has taken its message"),
    (1, "at least one has not, or there is none; the message says why"),
    (2, "wrong usage"),
)


@click.group("notify", epilog=lesson(_EXAMPLES, _EXITS))
def command() -> None:
    """Try the targets that are told what happened: `notify` in robust.yaml."""


@command.command(epilog=lesson(_EXAMPLES, _EXITS))
@click.option("--target", "name", metavar="NAME", help="This target alone.")
@click.option("--config", "path", type=click.Path(dir_okay=False), help="robust.yaml; else as the daemon.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def test(name: str | None, path: str | None, as_json: bool) -> None:
    """Send a test message, and say what came back.

    It goes the daemon's own way: through a process that reads the secrets and gives up root. Type it as root, who may
    read them. Quiet hours and rates do not hold it up.
    """
    config = load_config(path)
    names = [target.name for target in config.notify.targets]
    if not names:
        raise click.ClickException("robust.yaml has no target: see notify.targets in docs/configuration.md")
    if name is not None and name not in names:
        raise click.UsageError(f"no target is called {name!r}; there are: {', '.join(names)}")
    chosen = [target for target in config.notify.targets if name in (None, target.name)]
    rows = _results(config, chosen)
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            state = "delivered" if row["ok"] else "NOT DELIVERED"
            quiet = "  (its quiet hours: other messages wait)" if row["quiet"] else ""
            click.echo(f"{row['target']}: {state}: {row['message']}{quiet}")
    if not all(row["ok"] for row in rows):
        sys.exit(1)


def _results(config: Config, targets: list[NotifyTarget]) -> list[dict[str, object]]:
    """Have the daemon's own process deliver to each of them."""
    from slurm_robust.doctor.targets import hidden_from_the_daemon  # noqa: PLC0415 (loaded for this command only)
    from slurm_robust.notify.alert import Delivery, OutletSettings  # noqa: PLC0415 (loaded for this command only)
    from slurm_robust.notify.quiet_hours import is_quiet, zone_of  # noqa: PLC0415 (the same)
    from slurm_robust.notify.wording import trial  # noqa: PLC0415 (the same)

    now_s = time.time()
    lines = [msgspec.json.encode(OutletSettings(msgspec.to_builtins(config.notify)))]
    lines += [msgspec.json.encode(trial(target.name, config.cluster, now_s)) for target in targets]
    argv = [sys.executable, "-m", "slurm_robust.cli.main", "daemon", "notify"]
    answers: dict[str, Delivery] = {}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"".join(line + b"\n" for line in lines))
        process.stdin.flush()
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.start()
        while len(answers) < len(targets) and (line := process.stdout.readline()):
            answer = msgspec.convert(json.loads(line), Delivery)
            answers[answer.target] = answer
        timer.cancel()
        process.stdin.close()
    rows: list[dict[str, object]] = []
    for target in targets:
        answer = answers.get(target.name) or Delivery("", target.name, ok=False, message="the process ended before")
        if hidden := hidden_from_the_daemon(target, config):
            answer = Delivery("", target.name, ok=False, message=hidden)  # even if root got an answer
        quiet = is_quiet(target.quiet_hours, zone_of(target.time_zone) or dt.timezone.utc, now_s)
        rows.append({"target": target.name, "kind": target.kind, "ok": answer.ok, "message": answer.message})
        rows[-1] |= {"quiet": quiet, "time_zone_known": zone_of(target.time_zone) is not None}
    return rows
