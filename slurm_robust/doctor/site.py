"""Compares robust.yaml with the machine: can nodes and users read it, and do its names, files and modes exist?"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from slurm_robust.config import site as configuration
from slurm_robust.config.site import Config
from slurm_robust.core.mode import Mode
from slurm_robust.doctor.advice import Advice, Severity
from slurm_robust.doctor.machine import ENV_FILE, settings_of

FRESH_S = 30.0
"""An older snapshot says nothing of a daemon that runs."""


def check(config: Config, used: Path | None, node: str, root: Path = Path("/")) -> list[Advice]:
    """Return findings about robust.yaml (`used`, None if the defaults hold) and the files that it names.

    `node` is this machine's name in Slurm, empty if it is no node of it; `root` is the folder that stands for `/`.
    """
    found = [readable(used)] if used is not None else []
    if node:
        found.append(_kmsg(config.nodecheck.kmsg.replace("%n", node), root))
        found.append(_cache(config.nodecheck.cache_dir.replace("%n", node), root))
    return [*found, *_scripts(config.mode, used, root)]


def readable(path: Path) -> Advice:
    """Return whether everybody can read robust.yaml: jobs and people's commands run as their users."""
    about = str(path)
    try:
        closed = next((p for p in reversed(path.resolve().parents) if not p.stat().st_mode & stat.S_IXOTH), None)
        if closed is None and path.stat().st_mode & stat.S_IROTH:
            return Advice(Severity.OK, about, "every user can read it")
    except OSError as error:
        return Advice(Severity.WRONG, about, f"cannot be read: {error.strerror}", f"ls -l {about}")
    fix = f"chmod o+x {closed}" if closed is not None else f"chmod 644 {about}"
    sentence = "only root can read it: `srobust run` and all commands of users fail, or do without the site's choices"
    return Advice(Severity.WRONG, about, sentence, fix)


def _kmsg(path: str, root: Path) -> Advice:
    about = "nodecheck.kmsg"
    if (root / path.lstrip("/")).exists():
        return Advice(Severity.OK, about, path)
    sentence = f"there is no {path} here: XIDs and all else that the kernel logs are not seen"
    return Advice(Severity.WRONG, about, sentence, "robust.yaml: nodecheck: {kmsg: the file of the kernel's log}")


def _cache(path: str, root: Path) -> Advice:
    about = "nodecheck.cache_dir"
    try:
        info = (root / path.lstrip("/")).lstat()
    except OSError:
        return Advice(Severity.OK, about, f"{path} is made by the first check")
    loss = "what is kept there is not believed: each prolog runs all checks, and jobs hear nothing of the node watch"
    if not stat.S_ISDIR(info.st_mode):
        return Advice(Severity.WRONG, about, f"{path} is not a folder: {loss}", f"rm {path}")
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o022:
        whose = f"is user {info.st_uid}'s" if info.st_uid else "may be written by others"
        return Advice(Severity.WRONG, about, f"{path} {whose}: {loss}", f"chown root:root {path}; chmod 755 {path}")
    return Advice(Severity.OK, about, f"only root writes {path}")


def _scripts(mode: Mode, used: Path | None, root: Path) -> list[Advice]:
    """Return whether prolog, epilog and health check have this robust.yaml, or another mode."""
    theirs = settings_of(root).get("SROBUST_CONFIG", "")
    if not theirs or theirs == str(used or ""):
        return []
    try:
        other = configuration.parse((root / theirs.lstrip("/")).read_text("utf-8"), theirs).mode
    except (OSError, UnicodeDecodeError, configuration.ConfigError) as error:
        return [Advice(Severity.WRONG, ENV_FILE, f"the scripts' SROBUST_CONFIG cannot be used: {error}", "edit it")]
    if other is mode:
        return []
    sentence = f"the scripts read {theirs}, with mode {other.value}; {used or 'the default'} says {mode.value}"
    return [Advice(Severity.WRONG, ENV_FILE, sentence, f"SROBUST_CONFIG={used}" if used else "remove SROBUST_CONFIG")]


def daemon(config: Config, state: Mapping[str, Any], now_s: float) -> list[Advice]:
    """Return whether a daemon, by its snapshot, has the mode of robust.yaml; nothing about one that is gone."""
    mode, at_s = state.get("mode"), state.get("at_s")
    if not isinstance(at_s, (int, float)) or now_s - at_s > FRESH_S or mode == config.mode.value:
        return []
    sentence = f"the daemon runs in mode {mode}, and robust.yaml says {config.mode.value}: it has not read it since"
    return [Advice(Severity.WRONG, "mode", sentence, "systemctl reload srobustd")]


def partitions(config: Config, there: Collection[str]) -> list[Advice]:
    """Return whether Slurm has the partitions of `standby`, with nodes in them; `there` has Slurm's partitions."""
    about = "standby.partitions"
    found = []
    for name in config.standby.partitions:
        if name not in there:
            level = Severity.WRONG if config.standby.size else Severity.ADVICE
            sentence = f"Slurm has no partition {name} with nodes: it gets no standby pool"
            known = ", ".join(sorted(there)[:10]) or "none"
            found.append(Advice(level, about, sentence, f"robust.yaml: standby: {{partitions: …}}; there are: {known}"))
    return found
