"""Computes how long a training's steps take, and how long some took beyond that. Pure: steps in, seconds out."""

from __future__ import annotations

from collections import deque
from statistics import median

CHECKPOINT, EVALUATE = "checkpoint", "evaluate"
"""Phases that the program announces (`progress.phase`)."""
_KEPT = 512
_MIN_SAMPLES = 10
_SAMPLE_S = 5.0
"""Short steps are measured together for so long: agents see steps at their own ticks."""
_BEYOND = 1.25
"""Steps that take longer than this times the usual are slow; less is jitter."""


class StepPace:
    """The pace of one training, by one of its ranks: all ranks wait for each other.

    The usual pace is the median of the last 512 samples. If the program announces a checkpoint, the time of the step
    beyond the usual pace counts for the checkpoint. An announced evaluation is the training's own work, neither slow
    nor lost.

    Attributes:
        checkpoint_s: Seconds in which steps stood still for a checkpoint.
        slow_s: Seconds that steps took beyond the usual pace.
    """

    def __init__(self, checkpoint_s: float = 0.0, slow_s: float = 0.0) -> None:
        self.checkpoint_s, self.slow_s = checkpoint_s, slow_s
        self._samples: deque[float] = deque(maxlen=_KEPT)
        self._last: tuple[int, float] | None = None
        self._phases: set[str] = set()
        self._usual_s: float | None = 0.0

    @property
    def usual_s(self) -> float:
        """Seconds that a step usually takes; 0 while too few were seen."""
        if self._usual_s is None:
            self._usual_s = median(self._samples) if len(self._samples) >= _MIN_SAMPLES else 0.0
        return self._usual_s

    def restart(self) -> None:
        """Begin with another attempt: the time between its steps and earlier steps is not a step."""
        self._last = None
        self._phases.clear()

    def saw(self, step: int, at_s: float, phase: str) -> None:
        """Note a step of the rank, when it completed the step, and the phase that it is in."""
        if self._last is None or step < self._last[0]:
            self.restart()
            self._last = (step, at_s)
            return
        self._phases.add(phase)
        steps, took_s = step - self._last[0], at_s - self._last[1]
        announced = self._phases & {CHECKPOINT, EVALUATE}
        if not steps or took_s <= 0 or (took_s < _SAMPLE_S and not announced):
            return
        usual_s = self.usual_s
        beyond_s = max(0.0, took_s - steps * usual_s) if usual_s else 0.0
        if CHECKPOINT in announced:
            self.checkpoint_s += beyond_s
        elif not announced:
            self.slow_s += beyond_s if took_s > _BEYOND * steps * usual_s else 0.0
            self._samples.append(took_s / steps)
            self._usual_s = None
        self._last, self._phases = (step, at_s), {phase} & {CHECKPOINT, EVALUATE}
