"""Can the targets of `notify` be reached from the daemon's machine? A connection is opened, and nothing is sent."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slurm_robust.config.notify import NotifyTarget
from slurm_robust.config.site import Config
from slurm_robust.doctor.advice import Advice, Severity

CONNECT_S, ALL_S = 4.0, 6.0
"""The time for one connection; and for all targets together, since a name service may not answer at all."""

Connect = Callable[[str, int], None]
"""Opens a connection to a host and port, and closes it; raises OSError."""


def check(config: Config, state: Mapping[str, Any], connect: Connect | None = None) -> list[Advice]:
    """Return a finding for each target; `state` is the daemon's snapshot, which knows what came back of messages."""
    failing = {t.get("target"): t.get("error") for t in state.get("notify", ()) if t.get("failing_since_s")}
    problems: dict[str, str | None] = {target.name: None for target in config.notify.targets}

    def look(target: NotifyTarget) -> None:
        known = failing.get(target.name) or hidden_from_the_daemon(target, config)
        problems[target.name] = known or _problem(target, config, connect or _connect)

    threads = [threading.Thread(target=look, args=(t,), daemon=True) for t in config.notify.targets]
    for thread in threads:
        thread.start()
    end_s = time.monotonic() + ALL_S
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    return [_advice(name, problem) for name, problem in problems.items()]


def _advice(name: str, problem: str | None) -> Advice:
    about, fix = f"notify target {name}", f"srobust notify test --target {name}"
    if problem is None:
        return Advice(Severity.WRONG, about, f"nobody is told: no answer within {ALL_S:g} s", fix)
    if problem.startswith(_NOT_ROOT):
        return Advice(Severity.UNKNOWN, about, problem, f"sudo {fix}")
    if problem:
        return Advice(Severity.WRONG, about, f"nobody is told: {problem}", fix)
    return Advice(Severity.OK, about, "can be reached")


_NOT_ROOT = "its secret can be read by root alone"


def _problem(target: NotifyTarget, config: Config, connect: Connect) -> str:
    """Return why no message can reach it; empty if nothing is known that keeps one from it."""
    if target.kind == "email":
        program = config.notify.sendmail[0] if config.notify.sendmail else ""
        return "" if program and shutil.which(program) else f"there is no mail program {program or '(notify.sendmail)'}"
    try:
        url = target.proxy or target.url or Path(target.url_file).read_text("utf-8").strip()
        if target.token_file:
            Path(target.token_file).read_bytes()
    except PermissionError:
        return _NOT_ROOT
    except (OSError, UnicodeDecodeError) as error:
        return f"its secret cannot be read ({error})"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        connect(host, port)
    except ValueError:
        return f"{target.url_file or 'its url'} has no URL"
    except OSError as error:
        return f"{host}:{port} cannot be reached ({error.strerror or error})"
    return ""


def hidden_from_the_daemon(target: NotifyTarget, config: Config) -> str:
    """Return that the daemon may not read a secret, if it runs under an account that is not root; else empty."""
    state_dir = Path(config.daemon.state_dir)
    for path in filter(None, (target.url_file, target.token_file)):
        try:
            daemon, owner = state_dir.stat().st_uid, Path(path).stat().st_uid
            name = state_dir.owner()
        except (OSError, KeyError):
            continue
        if daemon not in (0, owner):
            return (
                f"the daemon, whose user is {name}, may not read {path}: chown {name} {path}; systemctl reload srobustd"
            )
    return ""


def _connect(host: str, port: int) -> None:
    with socket.create_connection((host, port), timeout=CONNECT_S):
        pass
