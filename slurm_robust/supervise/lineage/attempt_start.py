"""Judges how an attempt starts: the training goes on, or starts from zero; and whether a restart in place would go on.

A restart in place runs the same command again, but not the batch script. If the script chooses the checkpoint, the
program then starts from zero and overwrites what it has saved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_robust.policy.job.consequences import Pauses
from slurm_robust.supervise.lineage.lineage import Lineage
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState

_NEWS_BEFORE = 50
_LONG_S = 600.0
"""After this long, a program that reports no step may have saved something that is worth keeping."""
_RESUMES = re.compile(
    r"resum|restor|\bSROBUST_|from[-_.]?check|ckpt[-_.]?path|auto[-_.]?load|(?:^|\s)--load\b"  # options of programs
    r"|\[\s+-[defrs]\s",  # a shell that looks for a file each time it is run: `bash -c '[ -f ckpt.pt ] && …'`
    re.IGNORECASE,
)
_NOT_RESUMING = re.compile(
    r"\S*wandb\S*(?:[= ]\S+)?|\S*no[-_.]resum\S*|\S*resum\w*[= ](?:false|no|none|never|off|0)\b", re.IGNORECASE
)


def resumes_by_itself(command: Sequence[str]) -> bool:
    """Return whether the command line shows that this program looks for its checkpoint at each start."""
    return _RESUMES.search(_NOT_RESUMING.sub(" ", " ".join(command))) is not None


@dataclass(frozen=True)
class StartedOver:
    """The program has started again from this step, though training had come further; has advice for the user."""

    step: int
    reached: int
    text: str


class AttemptStart:
    """The start of one attempt.

    With `seen`, its output was read from its begin. With `relaunched`, it runs after another attempt in the same
    allocation.

    Attributes:
        started_over: The step from which it started over, -1 if it did not.
    """

    def __init__(
        self,
        session: Session,
        attempt: AttemptState,
        store: LineageStore,
        *,
        seen: bool = True,
        relaunched: bool = False,
    ) -> None:
        self._session = session
        self._attempt = attempt
        self._store = store
        self._seen = seen
        self._relaunched = relaunched
        self._judged = False
        self.started_over = -1
        attempt.pauses = self.pauses

    @property
    def last_old_step(self) -> int:
        """The step beyond which a step is new."""
        return self._store.lineage.reached if self.started_over >= 0 else self._attempt.resume_point.step

    @property
    def unsure(self) -> bool:
        """Whether one more line of the log will show how the attempt started."""
        attempt = self._attempt
        if not self._seen or self._judged or attempt.has_progress or not self._store.lineage.counter:
            return False
        # Progress bars of preparations are drawn first: wait for the training's own counter, but not for ever.
        return attempt.one_line_short if self._comparable else attempt.counters.count < _NEWS_BEFORE

    @property
    def _comparable(self) -> bool:
        """Whether the training's own numbers are known: a log only shows them after an attempt that trained."""
        known = self._store.lineage.counter
        return self._attempt.has_progress or (bool(known) and self._attempt.counters.main == known)

    def remembered(self) -> Lineage:
        """Return the lineage in numbers that can be compared with this attempt's: by which counter, and how far.

        Numbers of another counter cannot be compared, nor numbers of another epoch if each epoch counts anew: an
        attempt that reports such numbers has come further.
        """
        known, attempt = self._store.lineage, self._attempt
        counter, numbers = attempt.counters.main, attempt.counters.training
        if attempt.has_progress or not counter:
            return known
        falls = known.falls or numbers.falls
        other = known.counter not in ("", counter) or (falls and numbers.epoch > known.epoch)
        if other:
            known = replace(known, reached=-1, first_step=-1)
        elif falls and numbers.epoch < known.epoch:
            known = replace(known, reached=max(known.reached, numbers.step))
        first = known.first_step if known.first_step >= 0 or attempt.resume_point.step >= 0 else self.first
        return replace(known, first_step=first, falls=falls, counter=counter, epoch=numbers.epoch)

    @property
    def pauses(self) -> Pauses:
        """The longest healthy pauses of the training, those of this attempt included."""
        return self._store.pauses_with(self._attempt.pauses)

    @property
    def fruitless(self) -> int:
        """How many attempts in a row, this one included, made no new step, by the step that this one has reached."""
        return 0 if self._attempt.step > self.remembered().reached else self._store.lineage.fruitless + 1

    @property
    def failed_launches(self) -> int:
        """How many launches of the job made no new step within the hour, this one included if it made none."""
        return self._store.failed_launches_after(self.remembered(), self._attempt.step)

    @property
    def first(self) -> int:
        """The attempt's first step, -1 if it is not known."""
        steps = self._attempt.first_steps if self._seen or self._attempt.has_progress else None
        return steps[1] if steps is not None else -1

    def judge(self) -> StartedOver | None:
        """Judge the start once, as soon as possible; return what to report as important."""
        first, steps, resume_point = self.first, self._attempt.first_steps, self._attempt.resume_point
        if self._judged or first < 0 or steps is None or not self._comparable:
            return None
        self._judged = True
        reached = self._store.lineage.reached
        if not self._store.began(first, resume_point.step, relaunched=self._relaunched):
            return None
        self.started_over = steps[0]
        given, option = "", " (give srobust run --robust-checkpoint-dir=DIR)"
        if resume_point.path is not None:
            given, option = f" It was given the checkpoint of step {resume_point.step}, and did not load it.", ""
        elif resume_point.searched:
            given = (
                " No verified checkpoint was in the folder of --robust-checkpoint-dir (`srobust ckpt list` tells why)."
            )
            option = ""
        text = (
            f"THE PROGRAM STARTED AGAIN FROM STEP {self.started_over}: it had come to step {reached}."
            f"{given} It may now overwrite what it has saved: to prevent that, stop it "
            f"with `scancel {self._session.job.name}`. For the next time, let the program look for its checkpoint at "
            f"each start, or load $SROBUST_RESUME_PATH{option}. A restart in place does not run the batch script "
            "again: move an `if` from there into the command, as in "
            "srobust run bash -c '[ -f ckpt.pt ] && A=--resume; exec python train.py $A'"
        )
        return StartedOver(self.started_over, reached, text)

    def resumes(self) -> bool | None:
        """Return whether a restart in place would keep all that a requeue keeps; None if it is not known."""
        known, session = self._store.lineage.in_place, self._session
        if known is not None:
            return known
        loads = bool(session.checkpoint_dir) or self._attempt.fleet.mark("checkpoint_loaded") > 0
        return True if loads or (session.command is not None and resumes_by_itself(session.command.command)) else None

    def at_stake(self) -> bool:
        """Return whether the training has made any progress yet that could be lost."""
        attempt = self._attempt
        reached = max(self._store.lineage.reached, attempt.step)
        if reached < 0:
            return self._session.clock.now_s() - attempt.began_at_s > _LONG_S
        return reached > max(self.remembered().first_step, 0)
