"""Checks the back end that `slurm.backend` chooses."""

from __future__ import annotations

from slurm_robust.doctor.advice import Advice, Severity

_KEY = "slurm.backend"
_FIX = "install the pyslurm of this Slurm's major.minor, or set slurm.backend: commands in robust.yaml"


def check(name: str, version: str, problem: str, lacking: dict[str, str]) -> list[Advice]:
    """Return whether the back end can do what it was chosen for.

    `problem` says why it cannot be used at all. `lacking` has the calls that Slurm's commands do in its place, and why.
    """
    if problem:
        sentence = f"{name} does not fit here, Slurm's commands are used instead: {problem}"
        return [Advice(Severity.WRONG, _KEY, sentence, _FIX)]
    if lacking:
        why = "; ".join(f"{call} ({reason})" for call, reason in lacking.items())
        return [Advice(Severity.ADVICE, _KEY, f"{name} {version} leaves these calls to Slurm's commands: {why}", _FIX)]
    return [Advice(Severity.OK, _KEY, f"{name} {version}".strip() + " does what it should")]
