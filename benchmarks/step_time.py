"""What supervision costs a training step: a program under `srobust run`, its supervision now on, now off.

Off means SIGSTOP for everything of ours beside the training (supervisor, watch step, agent), on means SIGCONT. So both
sides are the same process with the same memory, seconds apart, and what the machine does otherwise hits both alike.
The step time of a window is exact: the training's own progress page gives a step's number and its time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lib import ROOT, first_job_id, median_interval, wait_for
from many_nodes import cpu_s

from slurm_robust import progress
from slurm_robust.devcluster.cluster import DevCluster, Spec

WINDOW_S = 2.0
"""As long as two looks through /proc, four ticks, one heartbeat: a window has neither more nor fewer than its share."""
PROGRAMS = {
    "steady": f"{ROOT}/benchmarks/steady.py",
    "train": f"{ROOT}/examples/train.py --workers 0 --checkpoint-every 0 --eval-every 0 --steps 100000000",
}
"""`steady` does the same work in every step, so that a small difference can be seen; `train` is a real training."""


@dataclass(frozen=True)
class StepTime:
    """What was found; ratios are of a window with supervision to its neighbour without.

    Attributes:
        overhead_percent: Of the step's time by the clock: the median of the ratios, less one.
        overhead_low_percent: Lower end of the median's 95 % confidence interval.
        overhead_high_percent: Its upper end.
        cpu_percent: The same of the processor time of a step, which does not count what others of this machine do.
        cpu_low_percent: As above.
        cpu_high_percent: As above.
        noise_percent: Interquartile range of the ratios of neighbours that were both without: what this machine does;
            None if there were too few.
        step_ms: Median step without supervision.
        agent_share: Processor seconds a second of the agent.
        supervisor_share: The same of supervisor, launcher and the watch step's srun, which only the first node has.
    """

    pairs: int
    overhead_percent: float
    overhead_low_percent: float
    overhead_high_percent: float
    cpu_percent: float
    cpu_low_percent: float
    cpu_high_percent: float
    noise_percent: float | None
    step_ms: float
    agent_share: float
    supervisor_share: float


@dataclass(frozen=True)
class Window:
    """Mean time of a step by the clock, and its processor time, seconds."""

    step_s: float
    cpu_s: float


def _beside(cluster: DevCluster) -> tuple[list[int], list[int], list[int]]:
    """Pids of (agents, supervisor side, ranks) of the cluster's one job."""
    agents, side, ranks = [], [], []
    for pid in cluster.processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            text = " ".join(words)
            if words[0].endswith("srun"):
                if "srobust-watch" in text:
                    side.append(pid)
            elif "slurm_robust.supervise.agent" in text:
                agents.append(pid)
            elif "slurm_robust.supervise" in text:
                side.append(pid)
            elif words[1].endswith(("/train.py", "/steady.py")):
                ranks.append(pid)
    return agents, side, ranks


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _read(fd: int) -> tuple[int, float]:
    record = wait_for(lambda: progress.read(fd), 5, "the training's progress", poll_s=0.001)
    return record.step, record.step_monotonic_s


def _window(fd: int, rank: int) -> Window:
    """Mean time of a step over one window."""
    (step, at_s), cpu_before_s = _read(fd), cpu_s(rank)
    time.sleep(WINDOW_S)
    (later, later_s), cpu_after_s = _read(fd), cpu_s(rank)
    return Window((later_s - at_s) / (later - step), (cpu_after_s - cpu_before_s) / (later - step))


def _compare(fd: int, rank: int, ours: Sequence[int], pairs: int) -> tuple[list[tuple[Window, Window]], list[float]]:
    """(windows on and off, ratios off to off) from windows in the order on, off, off, on, on, off, …."""
    noise: list[float] = []
    both: list[tuple[Window, Window]] = []
    last: Window | None = None
    for pair in range(pairs):
        seen: dict[bool, Window] = {}
        for on in (True, False) if pair % 2 == 0 else (False, True):
            _signal(ours, signal.SIGCONT if on else signal.SIGSTOP)
            seen[on] = _window(fd, rank)
            if not on and last is not None:
                noise.append(seen[on].step_s / last.step_s)
            last = None if on else seen[on]
        both.append((seen[True], seen[False]))
    _signal(ours, signal.SIGCONT)
    return both, noise


def _percent(ratios: Sequence[float]) -> tuple[float, float, float]:
    """(median, lower, upper end of its interval) less one, in percent."""
    return tuple(round((r - 1) * 100, 4) for r in (statistics.median(ratios), *median_interval(ratios)))  # type: ignore[return-value]


def measure(program: str, pairs: int) -> StepTime:
    """Run one of PROGRAMS on one node of a real Slurm, and compare so many pairs of windows."""
    # A supervisor that was stopped must not take its own pause for the training's silence.
    yaml = {"supervise": {"suspicion_floor_s": 60.0}, "mode": "observe"}
    cluster = DevCluster.up(
        Spec(nodes=1, gpus_per_node=0, prolog=False, robust_yaml=yaml, slurm_conf_extra=first_job_id())
    )
    try:
        script = cluster.layout.work / "job.sh"
        script.write_text(f"#!/bin/sh\nexec srobust run {sys.executable} {PROGRAMS[program]}\n")
        cluster.run(["sbatch", "-N1", "--exclusive", "--ntasks-per-node=1", str(script)])
        wait_for(lambda: all(_beside(cluster)), 60, "training and its agent", poll_s=0.3)
        rank = _beside(cluster)[2][0]
        path = wait_for(lambda: progress.find(rank), 60, "the training's first report")
        fd = os.open(path, os.O_RDONLY)
        try:
            wait_for(lambda: _read(fd)[0] > 200 or None, 120, "two hundred steps")
            agents, side, _ = _beside(cluster)
            before = [sum(map(cpu_s, pids)) for pids in (agents, side)]
            began_s = time.monotonic()
            time.sleep(2 * WINDOW_S)
            took_s = time.monotonic() - began_s
            after = [sum(map(cpu_s, pids)) for pids in (agents, side)]
            both, noise = _compare(fd, rank, [*agents, *side], pairs)
        finally:
            os.close(fd)
    finally:
        cluster.down()
    quartiles = statistics.quantiles(noise, n=4) if len(noise) > 1 else None
    return StepTime(
        len(both),
        *_percent([on.step_s / off.step_s for on, off in both]),
        *_percent([on.cpu_s / off.cpu_s for on, off in both]),
        noise_percent=round((quartiles[2] - quartiles[0]) * 100, 4) if quartiles else None,
        step_ms=statistics.median(off.step_s for _, off in both) * 1000,
        agent_share=(after[0] - before[0]) / took_s,
        supervisor_share=(after[1] - before[1]) / took_s,
    )
