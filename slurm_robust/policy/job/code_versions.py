"""Decides which version of its code a job runs next. Pure.

A version counts as proven once training has made a new step with it. Then:

| what happens | what follows |
|---|---|
| an update is due (now, at a newer verified checkpoint, at the end of its window) | restart in place with the update |
| any failure while an update waits, also the program's own error | the next attempt runs the update |
| an unproven version, or one on trial, ends by the program's own error | back to the last proven version |
| a version repeats a failure that no other version had | back to the last proven version |
| anything else | the version stays |

A version that is put in force for the first time is on trial for `TRIAL_S`. During the trial, an error of the program
that another version had before is no reason to go back.

A version is taken back once, and is then never put in force again automatically. If the older version fails as well,
the other rules decide. A node that is dead, or has reported a fault of its own, has nothing to do with the code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from slurm_robust.core.model import Failure, FailureCause

When = Literal["now", "next-checkpoint", "next-failure"]
TRIAL_S = 3600.0
"""An update is on trial for so long: what it breaks shows at its first steps, first evaluation, or first checkpoint."""
_MAX_KEPT = 50
_NOT_OF_CODE = (FailureCause.SHARED, FailureCause.SLURM, FailureCause.NODE)


@dataclass(frozen=True)
class PendingCode:
    """A version of the code that waits to be put in force.

    Attributes:
        until_s: When the version is put in force at the latest, seconds since the epoch.
        back: The version is older than the version in force, which is taken back.
    """

    number: int
    when: When
    until_s: float
    by: str
    back: bool = False


@dataclass(frozen=True)
class CodeState:
    """The memory of a training about its versions.

    Attributes:
        in_force: The version that runs, 0 if the code is not kept in versions.
        proven: Versions with which training made a new step, oldest first.
        pending: The version that waits.
        taken_back: Versions that are not put in force again automatically.
        failures: Signatures of the failures of the version in force.
        others: Signatures of the failures of all other versions.
        trial_until_s: Until when the version in force is on trial, seconds since the epoch; 0 if it is not.
    """

    in_force: int = 0
    proven: tuple[int, ...] = ()
    pending: PendingCode | None = None
    taken_back: tuple[int, ...] = ()
    failures: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    trial_until_s: float = 0.0

    @property
    def older(self) -> int:
        """The last proven version that could replace the version in force; 0 if there is none."""
        known = [n for n in self.proven if n != self.in_force and n not in self.taken_back]
        return known[-1] if known else 0

    def made_step(self) -> CodeState:
        """Return the state after training has made a new step with the version in force."""
        if not self.in_force or self.proven[-1:] == (self.in_force,):
            return self
        before = tuple(n for n in self.proven if n != self.in_force)
        return replace(self, proven=(*before, self.in_force)[-_MAX_KEPT:])

    def failed(self, failure: Failure | None) -> CodeState:
        """Return the state after an attempt with the version in force has failed."""
        if failure is None or not self.in_force or failure.cause in _NOT_OF_CODE:
            return self
        return replace(self, failures=(*self.failures, failure.signature)[-_MAX_KEPT:])

    def lost(self, number: int) -> CodeState:
        """Return the state without this version, which cannot be used any more: neither proven nor pending."""
        pending = None if self.pending is not None and self.pending.number == number else self.pending
        return replace(self, proven=tuple(n for n in self.proven if n != number), pending=pending)

    def switched(self, number: int, *, back: bool, now_s: float = 0.0) -> CodeState:
        """Return the state after another version is put in force; with `back` the present version is taken back."""
        gone = (self.in_force,) if back else ()
        pending = None if self.pending is not None and self.pending.number == number else self.pending
        return replace(
            self,
            in_force=number,
            pending=pending,
            taken_back=(*(n for n in self.taken_back if n != number), *gone)[-_MAX_KEPT:],
            failures=(),
            others=(*self.others, *self.failures)[-_MAX_KEPT:],
            trial_until_s=now_s + TRIAL_S if now_s and self.proven and number not in self.proven else 0.0,
        )


@dataclass(frozen=True)
class NextCode:
    """The version of the next attempt, and why."""

    number: int
    reason: str
    back: bool = False


def after_failure(state: CodeState, failure: Failure | None, *, own_error: bool, new_step: bool) -> NextCode | None:
    """Return which other version the next attempt runs because of this failure; None to keep the version.

    `own_error`: the program ended by an error of its own. `new_step`: this attempt has made a new step.
    """
    if not state.in_force or (failure is not None and failure.cause in _NOT_OF_CODE):
        return None
    now, pending, older = state.in_force, state.pending, state.older
    if pending is not None:
        text = f"version {pending.number} of the code, which {pending.by} has prepared, replaces version {now}"
        return NextCode(pending.number, text, pending.back) if own_error else None
    if not older:
        return None
    signature = failure.signature if failure is not None else ""
    if own_error and not new_step and now not in state.proven:
        why = f"version {now} ended by its own error before its first new step"
    elif own_error and state.trial_until_s and signature not in state.others:
        why = f"version {now} ended by its own error within {TRIAL_S / 60:g} minutes of its update"
    elif signature and signature in state.failures and signature not in state.others:
        why = f"version {now} has failed in the same way before ({signature}), and no other version has"
    else:
        return None
    return NextCode(older, f"{_back(state)}, because {why}", True)


def unexplained(state: CodeState, failure: Failure | None) -> NextCode | None:
    """Return the version to go back to because nothing explains why the one in force fails; None if there is none.

    None also if another version has failed in the same way, or if an update waits: the next attempt runs the update.
    """
    known = failure is not None and failure.signature in state.others
    if not state.in_force or state.pending is not None or not state.older or known:
        return None
    return NextCode(state.older, f"{_back(state)}, because nothing explains the failure", True)


def _back(state: CodeState) -> str:
    now, older = state.in_force, state.older
    return f"VERSION {now} OF THE CODE IS TAKEN BACK: version {older}, the last that made progress, runs again"


def due(pending: PendingCode, now_s: float, checkpoint_step: int) -> str:
    """Return why a waiting version is put in force now; empty while it waits.

    `checkpoint_step` is the step of a checkpoint that was verified since the update was asked for, -1 for none.
    """
    if pending.when == "now":
        return "at once"
    if pending.when == "next-checkpoint" and checkpoint_step >= 0:
        return f"the checkpoint of step {checkpoint_step} is verified"
    return "its time is over" if now_s >= pending.until_s else ""
