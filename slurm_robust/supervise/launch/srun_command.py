"""Reads the user's own `srun` options: where the command begins, and what a relaunch adds. Pure.

Options are read, but never rewritten. A relaunch adds a few options at the end: if srun has an option twice, the last
one counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_SHORT_FLAGS = frozenset("EHhlOQqsuVvXZ")
_SHORT_OPTIONAL = frozenset("IKk")
_FLAGS = """
async contiguous disable-status exact external help hold interactive label multi-prog no-allocate overcommit overlap
oversubscribe preserve-env quiet quit-on-interrupt reboot share spread-job stepmgr test-only unbuffered usage
use-min-nodes verbose version whole"""
_PYXIS_FLAGS = """
container-entrypoint container-entrypoint-log container-mount-home container-readonly container-remap-root
container-writable no-container-entrypoint no-container-entrypoint-log no-container-mount-home
no-container-remap-root"""
_OPTIONAL = """
bcast compress exclusive get-user-env immediate kill-on-bad-exit nice no-kill propagate pty resv-ports send-libs x11"""
_LONG_FLAGS = frozenset((_FLAGS + _PYXIS_FLAGS).split())
_LONG_OPTIONAL = frozenset(_OPTIONAL.split())
"""Long options whose value can only follow `=`."""
_SHORT_NAMES = {"N": "nodes", "n": "ntasks", "w": "nodelist", "x": "exclude", "r": "relative", "F": "nodefile"}


class UsageError(Exception):
    """The command line cannot be used; the message names the word, and what was expected."""


class SrunCommand(NamedTuple):
    """A parsed command line of `srobust run`.

    Attributes:
        options: srun's own options, as typed.
        command: The program and its arguments.
        values: The values of options by long name (the last one if repeated; empty for flags).
        own: `--robust-…` options by name without the prefix; `mode` for a bare `--robust[=…]`.
    """

    options: tuple[str, ...]
    command: tuple[str, ...]
    values: Mapping[str, str]
    own: Mapping[str, str]


def parse(words: Sequence[str]) -> SrunCommand:
    """Parse `[srun options] [--] CMD…` as srun itself would (options end at the first word that is not an option).

    Raises:
        UsageError: no command, or an option without its value.
    """
    options: list[str] = []
    values: dict[str, str] = {}
    own: dict[str, str] = {}
    i = 0
    while i < len(words):
        word = words[i]
        if word == "--":
            i += 1
            break
        if not word.startswith("-") or word == "-":
            break
        used, name, value = _option(words, i)
        if name == "robust" or name.startswith("robust-"):
            own["mode" if name == "robust" else name[len("robust-") :]] = value
        else:
            options.extend(words[i : i + used])
            values[name] = value
        i += used
    command = tuple(words[i:])
    if not command:
        raise UsageError("no command to run: srobust run [srun options] [--] CMD [ARG…]")
    return SrunCommand(tuple(options), command, values, own)


def _option(words: Sequence[str], i: int) -> tuple[int, str, str]:
    """Return (words used, long name, value) of the option at `words[i]`."""
    word = words[i]
    if word.startswith("--"):
        name, sep, value = word[2:].partition("=")
        if sep or name in _LONG_FLAGS or name in _LONG_OPTIONAL or name in ("robust", "robust-warm"):
            return 1, name, value
        return 2, name, _value(words, i)
    letter, rest = word[1], word[2:]
    while letter in _SHORT_FLAGS and rest:  # `-ln4` is `-l -n4`
        letter, rest = rest[0], rest[1:]
    name = _SHORT_NAMES.get(letter, letter)
    if letter in _SHORT_FLAGS or letter in _SHORT_OPTIONAL:
        return 1, name, "" if letter in _SHORT_FLAGS else rest
    if rest:
        return 1, name, rest.removeprefix("=")
    return 2, name, _value(words, i)


def _value(words: Sequence[str], i: int) -> str:
    if i + 1 >= len(words) or words[i + 1] == "--":
        raise UsageError(
            f"{words[i]}: a value is missing behind it (write {words[i]}=VALUE, or srun has no such option)"
        )
    return words[i + 1]


def labels_lines(command: SrunCommand, env: Mapping[str, str]) -> bool:
    """Return whether srun puts each task's number before its lines."""
    bundled = any(re.fullmatch(rf"-[{''.join(_SHORT_FLAGS)}]*l.*", word) for word in command.options)
    return "label" in command.values or bundled or env.get("SLURM_LABELIO", "0") not in ("", "0")


def plain(command: SrunCommand) -> list[str]:
    """Return the user's own `srun` command, as typed."""
    return ["srun", *command.options, "--", *command.command]


def first_launch(command: SrunCommand, *, keep_evidence: bool = True) -> list[str]:
    """Return the argument list of the user's own `srun`.

    With `keep_evidence`, one rank's death does not end the step and destroy the evidence; the caller must then end the
    step. A value that the user chose stays: with `-K1` the step ends at once.
    """
    extra = []
    if not keep_evidence:
        return ["srun", *_exporting(command), "--", *command.command]
    if not {"kill-on-bad-exit", "K"} & set(command.values):
        extra.append("--kill-on-bad-exit=0")
    if not {"wait", "W"} & set(command.values):
        extra.append("--wait=0")
    return ["srun", *extra, *_exporting(command), "--", *command.command]


def death_patience_s(command: SrunCommand, env: Mapping[str, str], settings: Mapping[str, str]) -> float:
    """Return how long plain srun would let other tasks run after a task ended badly, seconds; infinite for ever.

    `first_launch` takes that choice away from srun unless the user has given the option.

    Args:
        command: The user's own command line.
        env: The environment that srun starts from.
        settings: Slurm's configuration, by key; empty if it is not known.
    """
    kills = env.get("SLURM_KILL_BAD_EXIT", settings.get("KillOnBadExit", "0")).strip()
    if not {"kill-on-bad-exit", "K"} & set(command.values) and not kills.startswith("0"):
        return 0.0
    waits = re.match(r"\s*(\d+)", env.get("SLURM_WAIT", settings.get("WaitTime", "0")))
    if {"wait", "W"} & set(command.values) or waits is None or int(waits[1]) == 0:
        return math.inf
    return float(waits[1])


def _exporting(command: SrunCommand) -> list[str]:
    """Return the user's options; a list in `--export` is extended by our variables, `NONE` stays unchanged."""
    ours = "SROBUST_ATTEMPT,SROBUST_RESUME_PATH,SROBUST_RESUME_STEP,SROBUST_SKIP_BATCHES,SROBUST_LINEAGE"
    export = command.values.get("export", "ALL")
    if export.upper() in ("NONE", "NIL", "ALL") or "SROBUST_ATTEMPT" in export:
        return list(command.options)
    return [*command.options, f"--export={export},{ours}"]


def relaunch(command: SrunCommand, exclude: Iterable[str], nodes: int | None) -> list[str]:
    """Return the argument list of a relaunch in the same allocation.

    `nodes` is how many nodes the training needs; None if only the user's own options tell. `--overlap` is added because
    a stuck step of the last attempt may still hold the resources.
    """
    argv = first_launch(command)
    at = argv.index("--")
    added = ["--overlap", *([f"--nodes={nodes}"] if nodes else [])]
    bad = sorted(set(exclude) | set(filter(None, re.split(r",(?![^[]*\])", command.values.get("exclude", "")))))
    if bad:
        added.append(f"--exclude={','.join(bad)}")
    return argv[:at] + added + argv[at:]


def named_hosts(command: SrunCommand, env: Mapping[str, str], hosts: Iterable[str]) -> str:
    """Return a sentence if command, options or environment name one of `hosts`; else an empty text.

    MASTER_ADDR, MASTER_PORT and Slurm's own variables are set anew for a relaunch and do not count.
    """
    for host in hosts:
        pattern = re.compile(rf"(?<![A-Za-z0-9._-]){re.escape(host)}(?![A-Za-z0-9_-]|\.[A-Za-z0-9])")
        for word in (*command.options, *command.command):
            if pattern.search(word):
                return f"the command names {host} ({word[:80]!r})"
        for key, value in env.items():
            if key.startswith(("SLURM", "SROBUST_", "MASTER_")) or key in ("HOSTNAME", "HOST", "PWD", "OLDPWD", "_"):
                continue
            if pattern.search(value):
                return f"the environment names {host} ({key})"
    if {"nodelist", "nodefile", "relative"} & set(command.values):
        return "the command chooses its nodes itself (--nodelist, --nodefile or --relative)"
    return ""
