"""What one training remembers across its attempts and requeues: how far it came, and its failures since then.

A batch script may hold several `srobust run`, one after the other. The job's Comment speaks of the one that ran last;
each finds its own memory in the job's folder, by its command line.
"""

from __future__ import annotations

import contextlib
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from slurm_robust.claim import Claim
from slurm_robust.model import Failure, FailureCause
from slurm_robust.supervise.folder import Folder

_FILE = "lineage.json"
_MAX_FAILURES = 50
_MAX_RUNS = 50


@dataclass(frozen=True)
class Lineage:
    """One training.

    Attributes:
        id: Its name, the same in every attempt.
        reached: The step it came to.
        fruitless: Attempts in a row that died before a new step.
        incident: Its open incident, or its last one.
        start_step: The checkpoint from which its last attempt died before a step of its own, -1 for none.
        failed_starts: How many did so from that checkpoint, one after the other.
        failures: Those since the last new step, oldest first.
        restarts_in_place: How often the step was started anew on the same nodes since then.
        older: Error messages from before the last new step: the same one again on the same node is that node's.
    """

    id: str
    reached: int = -1
    fruitless: int = 0
    incident: str = ""
    start_step: int = -1
    failed_starts: int = 0
    failures: tuple[Failure, ...] = ()
    restarts_in_place: int = 0
    older: tuple[Failure, ...] = ()

    def until(self, step: int) -> Lineage:
        """What counts of it for an attempt that came as far as `step`: little, where it came further than before."""
        if step <= self.reached:
            return self
        worded = [f for f in (*self.older, *self.failures) if f.cause is FailureCause.WORDS]
        return Lineage(self.id, step, incident=self.incident, older=tuple(worded[-_MAX_FAILURES:]))

    def after(self, step: int, start_step: int, failure: Failure | None, *, in_place: bool) -> Lineage:
        """What is remembered once an attempt has ended.

        Args:
            step: How far it came.
            start_step: The checkpoint it started from, -1 for none.
            failure: What went wrong, None where that cannot be compared.
            in_place: The step is started anew on the same nodes.
        """
        if failure is not None and failure.cause is FailureCause.SLURM:
            return replace(self, failures=(*self.failures, failure)[-_MAX_FAILURES:])  # no attempt: nothing has run
        base = self.until(step)
        again = start_step >= 0 and step <= start_step
        return replace(
            base,
            fruitless=0 if base is not self else self.fruitless + 1,
            start_step=start_step if again else -1,
            failed_starts=(self.failed_starts if self.start_step == start_step else 0) + 1 if again else 0,
            failures=(*base.failures, *([failure] if failure is not None else []))[-_MAX_FAILURES:],
            restarts_in_place=base.restarts_in_place + in_place,
        )


@dataclass(frozen=True)
class Memory:
    """All runs of one batch script.

    Attributes:
        speaks: Key of the run of which the job's Comment speaks.
        runs: What each remembers, by its key.
    """

    speaks: str = ""
    runs: Mapping[str, Lineage] = field(default_factory=dict)

    def of(self, key: str, said: Claim, previous: Claim | None) -> Lineage:
        """What the run of this key has to remember as it starts.

        Args:
            key: See `run_key`.
            said: The job's claim, as the Comment has it from whichever run spoke last.
            previous: That run's own words; None where they are of no attempt that failed.
        """
        found = self.runs.get(key)
        if previous is not None and self.speaks in ("", key):
            known = found if found is not None and found.id == said.lineage else Lineage(said.lineage)
            return replace(known, reached=said.step, fruitless=said.fruitless, incident=said.incident)
        # Words of another run are not ours to go on from.
        return found or Lineage(said.lineage if previous is None else secrets.token_hex(6))


def run_key(words: Sequence[str]) -> str:
    """Names one `srobust run` of a script by its command line."""
    return f"{zlib.crc32(chr(0).join(words).encode('utf-8', 'replace')):08x}"


def load(folder: Folder) -> Memory:
    """What the attempts before left in the job's folder; nothing where they left none that can be read."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((folder.path / _FILE).read_bytes(), type=Memory)
    return Memory()


def save(folder: Folder, key: str, lineage: Lineage | None) -> None:
    """Keep what this run remembers, None for nothing; a full disk only shortens the memory."""
    runs = {k: v for k, v in load(folder).runs.items() if k != key}
    if lineage is not None:
        runs[key] = lineage
    kept = dict(list(runs.items())[-_MAX_RUNS:])
    folder.write(_FILE, msgspec.json.encode(Memory(key, kept)))
