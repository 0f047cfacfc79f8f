"""Finds the processes of this node that are ranks of the watched step, and the process tree of each rank.

One host may run several (virtual) nodes, and nodes of several clusters, so a process counts only if its own
SLURMD_NODENAME and cluster match.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock

_YOUNG_S = 5.0
"""A process younger than this may still exec with another environment."""

_MOST_GPUS = 64
_FIRST_STEP_OF_SLURM = 0xFFFFFFF0
"""Steps from this number on are Slurm's own: batch, extern, interactive."""

_RELEASED = "/memfd:srobust-released"
"""A descriptor with this name shows that a warm process (`warm_processes`) has become a rank."""
STEP_MARK = "step:"
"""An attempt named by this and a number is a step that another srun than ours runs."""


class Target(NamedTuple):
    """The watched processes: a job's training step, named by attempt if `srobust run` started it.

    Attributes:
        attempt: Value of SROBUST_ATTEMPT, or `step:N` for one step; empty for all steps of a job that was never
            wrapped.
        own_step: The watch step's own id: its processes are never ranks.
    """

    job_id: str
    node: str
    attempt: str
    own_step: str
    cluster: str = ""


class StepProcess(NamedTuple):
    """A process of the watched step."""

    pid: int
    ppid: int
    start_ticks: int
    command: str
    procid: int
    rank: int
    """RANK, -1 if the environment has none."""
    step_id: str
    world: int
    nodes: int
    """How many nodes its step has, -1 if unknown."""
    dump_pipe: str
    """Path, up to the rank's number, of the pipe that asks PyTorch for a flight-recorder dump; empty if unknown."""
    dump_stem: str = ""
    """The same of the dump itself."""
    exits: str = ""
    """File in which the SPANK plugin records how tasks of the step ended; empty without the plugin."""
    gpus: tuple[int, ...] | None = None
    """Numbers of the GPUs that the process was given; None if its environment does not say."""
    alone: bool = False
    """RANK counts within its task only: several tasks of its step may have RANK=0, each in a world of its own."""


class Rank(NamedTuple):
    """A rank: its main process first, then every other process of its tree."""

    rank: int
    step_id: str
    world: int
    main: StepProcess
    tree: tuple[StepProcess, ...]


def cluster(env: Mapping[str, str]) -> str:
    """Return the cluster's name; a step always has SLURM_WORKING_CLUSTER, but not always SLURM_CLUSTER_NAME."""
    return env.get("SLURM_WORKING_CLUSTER", "").partition(":")[0] or env.get("SLURM_CLUSTER_NAME", "")


def _number(text: str | None, default: int = -1) -> int:
    try:
        return int(text or "")
    except ValueError:
        return default


class ProcessFinder:
    """Scans /proc; reads each process's environment only once."""

    def __init__(self, target: Target, clock: SystemClock = CLOCK) -> None:
        self.target = target
        self._clock = clock
        self._foreign: dict[int, int] = {}
        self._mine: dict[int, StepProcess] = {}
        self._read_young: set[int] = set()
        """Processes that were young when they were read last: they are read once more."""
        self._waiting: set[int] = set()
        """Warm processes, which are not ranks yet."""

    def watch(self, attempt: str) -> None:
        """Turn to another attempt of the same job."""
        self.target = self.target._replace(attempt=attempt)
        self._foreign.clear()
        self._mine.clear()

    def processes(self) -> list[StepProcess]:
        """Return every process of the watched step on this node, now."""
        me = os.getuid()
        seen: set[int] = set()
        out: list[StepProcess] = []
        uptime_ticks = self._clock.since_boot_s() * os.sysconf("SC_CLK_TCK")
        young_ticks = _YOUNG_S * os.sysconf("SC_CLK_TCK")
        for pid in procfs.pids():
            if me != 0 and procfs.owner(pid) != me:
                continue
            stat = procfs.stat(pid)
            if stat is None or not stat.alive:
                continue
            seen.add(pid)
            known = self._mine.get(pid)
            young = uptime_ticks - stat.start_ticks < young_ticks
            final = not young and pid not in self._read_young
            if known is not None and known.start_ticks == stat.start_ticks and final:
                out.append(known._replace(ppid=stat.ppid))
                continue
            if self._foreign.get(pid) == stat.start_ticks and final and pid not in self._waiting:
                continue
            (self._read_young.add if young else self._read_young.discard)(pid)
            process = self._read(pid, stat)
            if process is None:
                self._foreign[pid] = stat.start_ticks
                self._mine.pop(pid, None)
            else:
                self._mine[pid] = process
                out.append(process)
        for table in (self._foreign, self._mine):
            for pid in [p for p in table if p not in seen]:
                del table[pid]
        self._waiting &= seen
        self._read_young &= seen
        return out

    def _read(self, pid: int, stat: procfs.ProcessStat) -> StepProcess | None:
        env = procfs.environ(pid)
        target = self.target
        step_id = env.get("SLURM_STEP_ID", "")
        if (
            env.get("SLURM_JOB_ID") != target.job_id
            or env.get("SLURMD_NODENAME") != target.node
            or (target.cluster and (cluster(env) or target.cluster) != target.cluster)
            or "SLURM_PROCID" not in env
            or not is_training_step(step_id)
            or step_id == target.own_step
            or env.get("SROBUST_WATCH")
            or not _is_of(target.attempt, env, step_id)
        ):
            return None
        self._waiting.discard(pid)
        if env.get("SROBUST_WARM") == "wait" and not _named(target.attempt) and not _is_released(pid):
            self._waiting.add(pid)
            return None
        tasks, world = _number(env.get("SLURM_STEP_NUM_TASKS")), _number(env.get("WORLD_SIZE"))
        rank = _number(env.get("RANK"))
        alone = tasks > 1 and (world == 1 or (world < 0 and rank == 0))
        return StepProcess(
            pid=pid,
            ppid=stat.ppid,
            start_ticks=stat.start_ticks,
            command=stat.command,
            procid=_number(env.get("SLURM_PROCID")),
            rank=rank,
            step_id=step_id,
            world=tasks if alone or world < 0 else world,
            nodes=_number(env.get("SLURM_STEP_NUM_NODES")),
            dump_pipe=env.get("TORCH_FR_DUMP_PIPE_FILE") or env.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE") or "",
            dump_stem=env.get("TORCH_FR_DUMP_TEMP_FILE") or env.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE") or "",
            exits=env.get("SROBUST_EXITS", ""),
            gpus=gpus_of(env),
            alone=alone,
        )


def gpus_of(environment: dict[str, str]) -> tuple[int, ...] | None:
    """Return the numbers of the GPUs that a process with this environment was given; None if it does not say.

    CUDA_VISIBLE_DEVICES comes last: Slurm counts its numbers from 0 if a cgroup shows the job only its own GPUs.
    """
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"):
        text = environment.get(name, "")
        if text:
            return _numbers(text)
    return () if environment.get("CUDA_VISIBLE_DEVICES") == "" else None


def _numbers(text: str) -> tuple[int, ...] | None:
    """Return the numbers in `0,2-3`; none for Slurm's `NoDevFiles`; None for UUIDs and any other text."""
    if text == "NoDevFiles":
        return ()
    found: list[int] = []
    for word in text.split(","):
        first, _, last = word.partition("-")
        if not first.isdigit() or not (last.isdigit() or word == first) or len(word) > 9:
            return None
        found.extend(range(int(first), int(last or first) + 1)[:_MOST_GPUS])
    return tuple(found[:_MOST_GPUS])


def is_training_step(step_id: str) -> bool:
    """Return whether SLURM_STEP_ID names a step of an srun; a batch script's is `4294967291`, or `-5` since 26.05."""
    return step_id.isdecimal() and int(step_id) < _FIRST_STEP_OF_SLURM


def _named(attempt: str) -> bool:
    """Return whether an attempt is named: then its processes count even while they wait for its begin."""
    return bool(attempt) and not attempt.startswith(STEP_MARK)


def _is_released(pid: int) -> bool:
    return any(link.startswith(_RELEASED) for link in procfs.open_links(pid))


def _is_of(attempt: str, env: dict[str, str], step_id: str) -> bool:
    """Return whether a process with this environment belongs to the watched attempt."""
    if attempt.startswith(STEP_MARK):
        return step_id == attempt[len(STEP_MARK) :]
    return not attempt or attempt in (env.get("SLURM_SROBUST_ATTEMPT"), env.get("SROBUST_ATTEMPT"))


def group(processes: list[StepProcess]) -> list[Rank]:
    """Sort the step's processes into ranks.

    A process whose environment has RANK (torchrun's workers, or a script that sets it) is the root of a rank if its
    parent has a different RANK or none. A task without such a process is one rank, named by SLURM_PROCID, and so is a
    root whose RANK counts within its task only.
    """
    by_pid = {p.pid: p for p in processes}
    with_rank = {p.procid for p in processes if p.rank >= 0}
    roots: list[tuple[int, StepProcess]] = []
    for p in processes:
        parent = by_pid.get(p.ppid)
        if p.procid in with_rank:
            if p.rank >= 0 and (parent is None or parent.rank != p.rank):
                roots.append((p.procid if p.alone else p.rank, p))
        elif parent is None or parent.procid != p.procid:
            roots.append((p.procid, p))
    ranks: dict[int, Rank] = {}
    # The oldest root of a number is the rank; orphans of that number (a loader whose parent died) join its tree.
    for number, root in sorted(roots, key=lambda r: r[1].start_ticks):
        tree = tuple(_descend(root, processes))
        if number in ranks:
            ranks[number] = ranks[number]._replace(tree=ranks[number].tree + tree)
        else:
            ranks[number] = Rank(number, root.step_id, root.world, _main(tree), tree)
    return [ranks[n] for n in sorted(ranks)]


def identity(process: StepProcess) -> tuple[int, int]:
    """Return an identity that distinguishes a process from a later process with the same pid."""
    return process.pid, process.start_ticks


def left_behind(before: dict[int, Rank], now: dict[int, Rank]) -> set[tuple[int, int]]:
    """Return processes that dead ranks left, if a child of the main process (a data loader) now counts as the rank."""
    left: set[tuple[int, int]] = set()
    for number, known in before.items():
        rank = now.get(number)
        if rank is None or rank.main.pid == known.main.pid:
            continue
        # Below a shell, its other children continue; if the task itself has ended, all other processes are orphans.
        headless = known.main.pid == known.tree[0].pid
        below = [p for p in (known.tree if headless else _descend(known.main, list(known.tree))) if p != known.main]
        if any(p.pid == rank.main.pid for p in below):
            left.update(identity(p) for p in below)
    return left


def _descend(root: StepProcess, processes: list[StepProcess]) -> list[StepProcess]:
    children: dict[int, list[StepProcess]] = {}
    for p in processes:
        children.setdefault(p.ppid, []).append(p)
    out, queue = [], [root]
    while queue:
        p = queue.pop(0)
        out.append(p)
        queue.extend(c for c in children.get(p.pid, []) if root.rank < 0 or c.rank == root.rank)
    return out


def _main(tree: tuple[StepProcess, ...]) -> StepProcess:
    """Return the rank's own process: the first Python in the tree (its parent may be a shell), else the root."""
    for p in tree:
        if p.command.startswith(("python", "pt_main_thread")):
            return p
    return tree[0]
