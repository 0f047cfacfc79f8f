"""Records a training's loss and gradient norm, `srobust-health.json` in its folder of checkpoints; rank 0 writes it.

    health = HealthLog("ckpt")
    ...
    health.observe(step, loss=loss, grad_norm=norm)

Give Python numbers, at every step or at the steps that are logged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.health.loss_health import (
    HEALTHY,
    UNKNOWN,
    HealthLimits,
    Point,
    Skip,
    Trend,
    judge,
    observe,
    skip,
    undecided,
)
from slurm_robust.checkpoint.replay import in_replay
from slurm_robust.checkpoint.store.find import Entry, Found, entries

HEALTH_NAME = "srobust-health.json"
VERSION = 1
_BAD_EVERY_S = 1.0
"""Shows for how long the loss was bad, if the program ends itself because of it."""


class HealthRecord(msgspec.Struct, kw_only=True):
    """The content of the file: the trend, the limits for judging it, and its writer (empty for the program itself)."""

    version: int = VERSION
    writer: str = ""
    limits: HealthLimits = HealthLimits()
    trend: Trend = msgspec.field(default_factory=Trend)

    def of(self, entry: Entry) -> tuple[str, str]:
        """Return (healthy, unhealthy or unknown, why) of a sealed checkpoint."""
        return judge(self.trend, entry.step, entry.created_at_s, self.limits)


def read(directory: str | Path) -> tuple[HealthRecord | None, str]:
    """Return the record of a folder of checkpoints, or why there is no record."""
    where = Path(directory) / HEALTH_NAME
    try:
        found = msgspec.json.decode(where.read_bytes(), type=HealthRecord)
    except FileNotFoundError:
        return None, f"{where}: not there: no loss is recorded"
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, f"{where}: cannot be read: {error}"
    if found.version != VERSION:
        return None, f"{where}: has version {found.version}, known is {VERSION}"
    return found, ""


def latest_healthy(
    directory: str | Path, *, deep: bool = False, on_bytes: files.OnBytes | None = None
) -> tuple[Found, Skip | None]:
    """Return the newest checkpoint that is sealed, whole and known to be healthy, and the batches to skip after it.

    Raises:
        CheckpointError: as `latest`.
    """
    record, why = read(directory)
    if record is None:
        return Found(passed_over=((Path(directory), why),)), None
    passed_over: list[tuple[Path, str]] = []
    for entry in entries(directory, deep=deep, on_bytes=on_bytes):
        state, why = (UNKNOWN, entry.problem) if entry.problem else record.of(entry)
        if state == HEALTHY:
            found = Found(path=entry.path, step=entry.step, passed_over=tuple(passed_over))
            return found, skip(record.trend, entry.step, record.limits)
        passed_over.append((entry.path, why if entry.problem else f"{state}: {why}"))
    return Found(passed_over=tuple(passed_over)), None


def worth_keeping(directory: str | Path, there: Sequence[Entry]) -> dict[Path, str]:
    """Return the checkpoints among these, newest first, to keep for a rollback, and why; empty if no loss is recorded.

    Kept are the newest healthy checkpoint, and the oldest after it that may become healthy: if pruning removed that
    one, and the newest few were always too young to be judged, no checkpoint would ever become healthy.
    """
    record, _ = read(directory)
    if record is None:
        return {}
    found: dict[Path, str] = {}
    for entry in there:
        if not entry.sealed or entry.problem:
            continue
        if record.of(entry)[0] == HEALTHY:
            return {**found, entry.path: "the newest that is known to be healthy: a newer one may contain a loss spike"}
        if undecided(record.trend, entry.step, entry.created_at_s, record.limits):
            found = {entry.path: "the next that may turn out to be healthy"}
    return found


class HealthLog:
    """Records each step, on one rank; writes at intervals, and at once when a loss becomes bad.

    Never raises: a failed write is repeated later. While the loss is bad it writes each second, else each
    `write_every_s`. `writer` is who writes it, if not the program itself.
    """

    def __init__(
        self,
        directory: str | Path,
        limits: HealthLimits | None = None,
        *,
        write_every_s: float = 30.0,
        writer: str = "",
    ) -> None:
        self._where = Path(directory) / HEALTH_NAME
        known, _ = read(directory)
        self.record = known if known is not None else HealthRecord()
        self.record.writer = writer
        if limits is not None:
            self.record.limits = limits
        self._every_s, self._written_s, self._was_bad = write_every_s, float("-inf"), False
        self.due = False
        """Whether the record is to be written now."""

    def observe(self, step: int, *, loss: float | None = None, grad_norm: float | None = None) -> str:
        """Record a step, and return what is bad about it, empty if nothing is; write the record if that is due.

        Values other than Python numbers are ignored, so that this never waits for a tensor on a GPU.
        """
        why = self.take(step, loss=loss, grad_norm=grad_norm)
        if self.due:
            self.write()
        return why

    def take(self, step: int, *, loss: float | None = None, grad_norm: float | None = None) -> str:
        """Do as `observe`, without writing the record."""
        point = Point(step, _number(loss), _number(grad_norm))
        why = observe(self.record.trend, point, self.record.limits, now_s=time.time())
        every_s = min(self._every_s, _BAD_EVERY_S) if why else self._every_s
        self.due |= bool(why) != self._was_bad or time.monotonic() - self._written_s >= every_s
        self._was_bad = bool(why)
        return why

    def write(self) -> bool:
        """Write the record now; False if that failed, or if this is a replay, whose steps are not the training's."""
        self._written_s, self.due = time.monotonic(), False
        if in_replay():
            return False
        try:
            self._where.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomic(self._where, msgspec.json.encode(self.record), durable=False)
        except OSError:
            return False
        return True


def _number(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number beyond all floats
        return math.inf
