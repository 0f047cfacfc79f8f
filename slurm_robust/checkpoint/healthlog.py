"""The record of a training's health, `srobust-health.json` in its folder of checkpoints: rank 0 writes, all read.

    health = HealthLog("ckpt")
    ...
    health.observe(step, loss=loss, grad_norm=norm)

Python numbers, at every step or at those that are logged.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from slurm_robust.checkpoint import files
from slurm_robust.checkpoint.find import Entry, Found, entries
from slurm_robust.checkpoint.health import HEALTHY, UNKNOWN, Point, Range, Skip, Trend, judge, observe, skip

HEALTH_NAME = "srobust-health.json"
VERSION = 1


class Record(msgspec.Struct, kw_only=True):
    """The file: what is known, and by which limits it was judged."""

    version: int = VERSION
    limits: Range = Range()
    trend: Trend = msgspec.field(default_factory=Trend)

    def of(self, entry: Entry) -> tuple[str, str]:
        """(healthy, unhealthy or unknown, why) of a sealed checkpoint."""
        return judge(self.trend, entry.step, entry.created_at_s, self.limits)

    def skip(self, step: int) -> Skip | None:
        """As `health.skip`."""
        return skip(self.trend, step, self.limits)


def read(directory: str | Path) -> tuple[Record | None, str]:
    """The record of a folder of checkpoints, or why there is none."""
    where = Path(directory) / HEALTH_NAME
    try:
        found = msgspec.json.decode(where.read_bytes(), type=Record)
    except FileNotFoundError:
        return None, f"{where}: not there, nobody tells its loss"
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, f"{where}: cannot be read: {error}"
    if found.version != VERSION:
        return None, f"{where}: of version {found.version}, known is {VERSION}"
    return found, ""


def latest_healthy(
    directory: str | Path, *, deep: bool = False, on_bytes: files.OnBytes | None = None
) -> tuple[Found, Skip | None]:
    """The newest checkpoint that is sealed, whole and known to be healthy, and what the data loader is to leave out.

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
            return found, record.skip(entry.step)
        passed_over.append((entry.path, why if entry.problem else f"{state}: {why}"))
    return Found(passed_over=tuple(passed_over)), None


class HealthLog:
    """Takes in what each step told, on one rank; writes now and then, and at once when something bad begins.

    Never raises: what cannot be written is tried again later.

    Args:
        directory: The folder of checkpoints.
        limits: What is in range.
        write_every_s: Between two writes while all goes well.
    """

    def __init__(self, directory: str | Path, limits: Range | None = None, *, write_every_s: float = 30.0) -> None:
        self._where = Path(directory) / HEALTH_NAME
        known, _ = read(directory)
        self.record = known if known is not None else Record()
        if limits is not None:
            self.record.limits = limits
        self._every_s, self._written_s, self._was_bad = write_every_s, float("-inf"), False

    def observe(self, step: int, *, loss: float | None = None, grad_norm: float | None = None) -> str:
        """What is bad about this step, empty where nothing is.

        Anything that is no Python number is not touched: a tensor on a GPU is never waited for.
        """
        point = Point(step, _number(loss), _number(grad_norm))
        why = observe(self.record.trend, point, self.record.limits, now_s=time.time())
        if bool(why) != self._was_bad or time.monotonic() - self._written_s >= self._every_s:
            self.write()
        self._was_bad = bool(why)
        return why

    def write(self) -> bool:
        """Write what is known now; False where that was not possible."""
        self._written_s = time.monotonic()
        try:
            self._where.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomic(self._where, msgspec.json.encode(self.record), durable=False)
        except OSError:
            return False
        return True


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
