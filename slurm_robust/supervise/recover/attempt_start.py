"""How an attempt begins: does training go on, or does it start again? And would it go on after a restart in place?

A restart in place runs the same command again. Where the batch script chooses the checkpoint, it is not asked: the
program then starts from zero and writes over what it has saved.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_robust.supervise.recover.lineage import Lineage
    from slurm_robust.supervise.supervisor import Supervisor

_NEWS_BEFORE = 50
_LONG_S = 600.0
"""A program that tells no step may have saved something that is worth keeping after so long."""
_RESUMES = re.compile(
    r"resum|restor|\bSROBUST_|from[-_.]?check|ckpt[-_.]?path|auto[-_.]?load|(?:^|\s)--load\b"  # options of programs
    r"|\[\s+-[defrs]\s",  # a shell that looks for a file each time it is run: `bash -c '[ -f ckpt.pt ] && …'`
    re.IGNORECASE,
)
_NOT_RESUMING = re.compile(
    r"\S*wandb\S*(?:[= ]\S+)?|\S*no[-_.]resum\S*|\S*resum\w*[= ](?:false|no|none|never|off|0)\b", re.IGNORECASE
)


def resumes_by_itself(command: Sequence[str]) -> bool:
    """Whether the command line says that this program looks for its checkpoint at each start."""
    return _RESUMES.search(_NOT_RESUMING.sub(" ", " ".join(command))) is not None


class Beginning:
    """The beginning of one attempt.

    Args:
        supervisor: Of this training.
        seen: False where the attempt had begun before its output was read.

    Attributes:
        started_over: The step from which it started again, -1 where it did not.
    """

    def __init__(self, supervisor: Supervisor, *, seen: bool = True) -> None:
        self._s = supervisor
        self._seen = seen
        self._judged = False
        self.started_over = -1

    @property
    def behind(self) -> int:
        """The step beyond which a step is new."""
        return self._s.roads.lineage.reached if self.started_over >= 0 else self._s.start.step

    @property
    def unsure(self) -> bool:
        """Whether one more line of the log will tell how it began."""
        present = self._s.present
        if not self._seen or self._judged or present.has_progress or not self._s.roads.lineage.counter:
            return False
        # Bars of what comes before training are drawn first: it is waited for its own counter, and not for ever.
        return present.begins if self._comparable else present.counters.count < _NEWS_BEFORE

    @property
    def _comparable(self) -> bool:
        """Whether it is known which numbers are the training's: of a log, only an attempt that trained tells."""
        known = self._s.roads.lineage.counter
        return self._s.present.has_progress or (bool(known) and self._s.present.counters.main == known)

    def remembered(self, known: Lineage) -> Lineage:
        """The lineage, with what this attempt has told so far: by which numbers, and how far it came by them.

        Numbers of another counter, and those of another epoch where they are counted anew, cannot be compared: an
        attempt that tells such numbers has come further.
        """
        counters = self._s.present.counters
        if self._s.present.has_progress or not counters.main:
            return known
        falls = known.falls or counters.falls
        other = known.counter not in ("", counters.main) or (falls and counters.epoch > known.epoch)
        if other:
            known = replace(known, reached=-1, first_step=-1)
        elif falls and counters.epoch < known.epoch:
            known = replace(known, reached=max(known.reached, counters.step))
        first = known.first_step if known.first_step >= 0 or self._s.start.step >= 0 else self.first
        return replace(known, first_step=first, falls=falls, counter=counters.main, epoch=counters.epoch)

    @property
    def first(self) -> int:
        """Its first step, -1 where that is not known."""
        began = self._s.present.beginning if self._seen or self._s.present.has_progress else None
        return began[1] if began is not None else -1

    def look(self) -> None:
        """Judge it, as soon as that is possible; a training that starts again is told loudly."""
        s, first = self._s, self.first
        if self._judged or first < 0 or not self._comparable:
            return
        self._judged = True
        reached = s.roads.lineage.reached
        if not s.roads.began(first):
            return
        assert s.present.beginning is not None
        self.started_over = s.present.beginning[0]
        given = f" It was given the checkpoint of step {s.start.step}, and did not load it." if s.start.path else ""
        text = (
            f"THE PROGRAM STARTED AGAIN FROM STEP {self.started_over}: it had come to step {reached}.{given} It may "
            f"now overwrite what it has saved: to prevent that, stop it with `scancel {s.context.name}`. For the next "
            "time, let the program look for its checkpoint at each start, or load $SROBUST_RESUME_PATH (give srobust "
            "run --robust-checkpoint-dir=DIR). A restart in place does not run the batch script again: move an `if` "
            "from there into the command, as in "
            "srobust run bash -c '[ -f ckpt.pt ] && A=--resume; exec python train.py $A'"
        )
        if s.record is not None:
            s.record.notes.append(text)
            s.book.save(s.record)
        s.folder.tell("started-over", text, step=self.started_over, reached=reached)

    def resumes(self) -> bool | None:
        """Whether a restart in place would lose nothing that a requeue keeps; None where nobody knows."""
        s = self._s
        known = s.roads.lineage.in_place
        if known is not None:
            return known
        loads = bool(s.checkpoint_dir) or s.present.fleet.mark("checkpoint_loaded") > 0
        return True if loads or (s.command is not None and resumes_by_itself(s.command.command)) else None

    def at_stake(self) -> bool:
        """Whether the training has done anything yet that could be lost."""
        s = self._s
        reached = max(s.roads.lineage.reached, s.present.step)
        if reached < 0:
            return time.time() - s.present.began_at_s > _LONG_S
        return reached > max(self.remembered(s.roads.lineage).first_step, 0)
