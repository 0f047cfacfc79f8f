"""What really happened to a training of a scripted day, as its own ranks and its batch script tell it.

Nothing here knows the daemon, its journal or the report: the ranks write down each step, and what is done to them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import hung_rank

from slurm_robust.core.spent_time import Spent

RANK = (
    hung_rank.SOURCE
    + '''
import json, os, sys
from slurm_robust import progress

box, rank, world = sys.argv[1], int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
plan = json.load(open(f"{box}/plan.json"))
run = f"{os.environ.get('SLURM_RESTART_COUNT', '0')}.{os.environ['SLURM_STEP_ID']}"
known = f"{box}/{rank}.told"
launch = sum('"begin"' in line for line in open(known)) if os.path.exists(known) else 0
told = open(known, "a", buffering=1)

def tell(what, step=-1):
    told.write(json.dumps([time.time(), what, step]) + "\\n")

def others_are_at(step):
    """Steps are made together: nobody begins one before all have made the one before."""
    def is_there(other):
        try:
            with open(f"{box}/{run}.{other}") as f:
                return int(f.read() or -1) >= step
        except FileNotFoundError:
            return False

    all_reduce(lambda: all(is_there(other) for other in range(world) if other != rank))

progress.mark("imports_done")
saved = int(open(f"{box}/saved").read()) if os.path.exists(f"{box}/saved") else 0
progress.mark("checkpoint_loaded")  # so a restart in place is known to lose nothing
tell("begin", saved)
strikes = plan["strikes"]
for step in range(saved + 1, plan["steps"] + 1):
    if step > saved + 1:
        others_are_at(step - 1)
    time.sleep(plan["step_s"])
    progress.step(step)
    tell("step", step)
    with open(f"{box}/{run}.{rank}.new", "w") as f:
        f.write(str(step))
    os.rename(f"{box}/{run}.{rank}.new", f"{box}/{run}.{rank}")
    if launch < len(strikes) and step == strikes[launch][0] and rank == 1:
        tell("struck", step)
        if strikes[launch][1] == "raise":
            raise TypeError("'NoneType' object is not subscriptable")
        if strikes[launch][1] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        wait_in_the_kernel()
    if step % plan["every"] == 0:
        begun = time.time()
        if plan["stall_s"]:
            with progress.phase("checkpoint"):
                time.sleep(plan["stall_s"])
        if rank == 0:
            with open(f"{box}/saved.new", "w") as f:
                f.write(str(step))
            os.rename(f"{box}/saved.new", f"{box}/saved")
        told.write(json.dumps([time.time(), "stall", time.time() - begun]) + "\\n")
tell("end")
'''
)
"""Every rank: lock-step steps, a checkpoint every so often, and the strike that the plan has for this launch."""


@dataclass(frozen=True)
class Launch:
    """One launch of the ranks, by their own stamps.

    Attributes:
        first_step_at_s: When the last rank had made its first step; None if none was made.
        first_new_step_at_s: When the last rank made the first step that no launch before had made.
        last_step_at_s: When the last step of all was made.
        stalls_s: Seconds in which rank 0 stood still for checkpoints.
    """

    first_step_at_s: float | None
    first_new_step_at_s: float | None
    last_step_at_s: float | None
    struck_at_s: float | None
    stalls_s: float


@dataclass(frozen=True)
class TrainingTruth:
    """One training, as its ranks and its batch script tell it.

    Attributes:
        submitted_at_s: Before `sbatch`.
        runs: When the batch script began, each time.
        ended_at_s: After its last command; None if that was never reached.
    """

    submitted_at_s: float
    runs: tuple[float, ...]
    ended_at_s: float
    launches: tuple[Launch, ...]

    @property
    def spent(self) -> dict[str, float]:
        """Seconds by what they went into; detection, diagnosis and restart are one: ranks do not see them apart."""
        first = self.launches[0]
        assert first.first_step_at_s is not None
        start, stopped, again = first.first_step_at_s - self.runs[0], 0.0, 0.0
        for before, after in zip(self.launches, self.launches[1:], strict=False):
            assert before.last_step_at_s is not None
            assert after.first_step_at_s is not None
            stopped += after.first_step_at_s - before.last_step_at_s
            again += (after.first_new_step_at_s or after.first_step_at_s) - after.first_step_at_s
        last = self.launches[-1]
        if last.struck_at_s is not None:  # the last strike ended it
            stopped += self.ended_at_s - (last.last_step_at_s or last.struck_at_s)
        wall = self.ended_at_s - self.submitted_at_s
        queue, stalls = self.runs[0] - self.submitted_at_s, sum(launch.stalls_s for launch in self.launches)
        return {
            "wall": wall,
            Spent.QUEUE.value: queue,
            Spent.START.value: start,
            "stopped": stopped,
            Spent.RECOMPUTATION.value: again,
            Spent.CHECKPOINT.value: stalls,
            Spent.PRODUCTIVE.value: wall - queue - start - stopped - again - stalls,
        }


@dataclass
class _Told:
    steps: dict[int, float] = field(default_factory=dict)
    struck_at_s: float | None = None
    stalls_s: float = 0.0


def truth_of(box: Path, submitted_at_s: float) -> TrainingTruth:
    """Read what the ranks and the batch script of this folder have written."""
    ranks = [_launches(path) for path in sorted(box.glob("*.told"))]
    launches, reached = [], 0
    for told in zip(*ranks, strict=True):
        steps = [one.steps for one in told]
        common = set.intersection(*(set(one) for one in steps))
        made = [max(one[step] for one in steps) for step in sorted(common)]
        new = [max(one[step] for one in steps) for step in sorted(common) if step > reached]
        last = [at_s for one in steps for at_s in one.values()]
        struck = [one.struck_at_s for one in told if one.struck_at_s is not None]
        launches.append(
            Launch(
                made[0] if made else None,
                new[0] if new else None,
                max(last, default=None),
                struck[0] if struck else None,
                told[0].stalls_s,
            )
        )
        reached = max([reached, *(step for one in steps for step in one)])
    runs = tuple(float(line) for line in (box / "begun").read_text().split())
    ended = float((box / "ended").read_text())
    return TrainingTruth(submitted_at_s, runs, ended, tuple(launches))


def _launches(path: Path) -> list[_Told]:
    found: list[_Told] = []
    for line in path.read_text().splitlines():
        at_s, what, number = json.loads(line)
        if what == "begin":
            found.append(_Told())
        elif what == "step":
            found[-1].steps[number] = at_s
        elif what == "struck":
            found[-1].struck_at_s = at_s
        elif what == "stall":
            found[-1].stalls_s += number
    return found
