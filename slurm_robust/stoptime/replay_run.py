"""Runs the groups of a replay, side by side, each as a Slurm step of its own, and has them judged.

A step is the user's command, or the reference model, on the nodes of one group. Each task begins with a line of ours,
so that a step that did not start is told from a program that fails. Every srun is ended before `run` returns; an srun
that does not end is killed, and its step is noted, for Slurm to end it. Linux ends the sruns when this process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import slurm_robust
from slurm_robust.stoptime.agent_step import ending_with_parent, environment
from slurm_robust.stoptime.replay_groups import ReplayGroup, ReplayResult, ReplayVerdict, judge, next_groups
from slurm_robust.stoptime.replay_results import MARK, StepOutput, compared, result_of

SAME = "same"
"""In place of a command: the job's own."""
AT_ONCE = 64
"""Steps side by side; the other groups of a phase wait for the next wave."""
LEAST_WAVE_S = 10.0
"""With less time left, a wave is not begun: if it did not end, that would not tell anything."""
_HANG_FACTOR, _HANG_LEAST_S = 3.0, 30.0
"""Once half of the groups have passed, or groups of an earlier wave, the other groups get so many times the time of the
slowest of these, and at least the second number of seconds."""
_CUT_FACTOR = 2.0
"""If the budget ends groups before so many times the slowest time, that does not tell anything about them."""
_TERM_S, _KILLED_S = 6.0, 3.0
_PORTS = range(20_000, 28_000)
_STREAM_LIMIT = 1 << 20
_TASK = f'printf "{MARK}began %s %s\\n" "$SLURMD_NODENAME" "$SLURM_JOB_ID.$SLURM_STEP_ID" >&2; exec env "$@"'
_REFERENCE = "import sys; sys.path.append(sys.argv[1]); from slurm_robust.stoptime.reference_replay import main; main()"
_SIZED = "gpus G relative r nodefile F exclude x nodelist w nodes N ntasks n jobid het-group distribution m"
_OTHER = "output o error e input i wait W ntasks-per-gpu ntasks-per-socket ntasks-per-core container-save"
_FLAGS = "pty exclusive overlap kill-on-bad-exit K preserve-env E bcast send-libs"
_NOT_OURS = frozenset(f"--{name}" if len(name) > 1 else f"-{name}" for name in f"{_SIZED} {_OTHER}".split())
_NOT_OURS_FLAGS = frozenset(f"--{name}" if len(name) > 1 else f"-{name}" for name in _FLAGS.split())
"""Options of the user's srun that size, place or connect the whole job's step, or write files (logs, programs on the
nodes, images of containers): they are only for the training."""
_SIZE_OPTIONS = "GPUS NTASKS NPROCS NNODES JOB_NUM_NODES NTASKS_PER_NODE TASKS_PER_NODE EXCLUSIVE"
_PLACE_OPTIONS = "HOSTFILE DISTRIBUTION STDOUTMODE STDERRMODE STDINMODE"
_SIZES = frozenset(f"SLURM_{name}" for name in f"{_SIZE_OPTIONS} {_PLACE_OPTIONS}".split())
"""Variables of sbatch's options that srun reads as its own options."""


@dataclass(frozen=True)
class ReplaySpec:
    """The specification of a replay.

    Attributes:
        group_nodes: How many nodes one group has: as many as one replica of the model needs.
        tasks: How many ranks run on each node; 0 for one on each GPU, or one if there is no GPU.
        command: The program and its arguments; empty for the reference model.
        tensor: How many ranks a tensor group of the reference model has; 0 for all of a node.
        srun_options: The user's own options of srun, for the job's own command.
        environment: The environment that srun starts from.
        folder: The folder in which the ranks run; empty for the current folder.
    """

    group_nodes: int
    tasks: int = 0
    command: tuple[str, ...] = ()
    tensor: int = 0
    srun_options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: environment(dict(os.environ)))
    folder: str = ""


def typed_command(text: str) -> tuple[str, ...]:
    """Return the words of a command that a user typed as one text, for a shell to read."""
    return ("/bin/sh", "-c", text)


def by_option(text: str, own: ReplaySpec) -> ReplaySpec:
    """Return the spec that `--robust-replay` asks for.

    Args:
        text: A command, `same`, or empty.
        own: The spec of the job's own command, as it was launched.
    """
    if text == SAME:
        return own
    if text:
        options = tuple(word for word in own.srun_options if word != "--multi-prog")  # the text is no list of programs
        return replace(own, command=typed_command(text), srun_options=options)
    return replace(own, command=(), tasks=0, srun_options=(), environment=environment(dict(own.environment)))


def step_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return srun's environment, without sizes of the whole job, and so that no supervisor attaches to the step."""
    return {**{key: value for key, value in base.items() if key not in _SIZES}, "SROBUST_MODE": "off"}


@dataclass(frozen=True)
class ReplayPlace:
    """The place where the steps run.

    Attributes:
        job_id: The job in whose allocation they run.
        hosts: The nodes, in Slurm's order → the name under which other nodes reach the node.
        gpus: How many GPUs each node has.
        python: The Python that has PyTorch.
    """

    job_id: str
    hosts: Mapping[str, str]
    gpus: int
    python: str


def kept_options(words: Sequence[str]) -> list[str]:
    """Return the user's options of srun, without options that size, place or connect the step."""
    kept: list[str] = []
    skip = False
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        if skip:
            skip = False
        elif name in _NOT_OURS_FLAGS:
            continue
        elif name in _NOT_OURS:
            skip = word == name
        else:
            kept.append(word)
    return kept


def variables(group: ReplayGroup, spec: ReplaySpec, place: ReplayPlace, port: int, tasks: int) -> dict[str, str]:
    """Return further variables of a rank of this group. Rank 0 is on the first node in Slurm's order."""
    first = next(host for node, host in place.hosts.items() if node in group.nodes)
    attempt = f"replay-{group.phase}-{group.number}"
    return {
        "SROBUST_REPLAY": "1",
        "SROBUST_REPLAY_PHASE": str(group.phase),
        "SROBUST_REPLAY_GROUP": str(group.number),
        "SROBUST_MODE": "off",
        "SROBUST_ATTEMPT": attempt,
        "SLURM_SROBUST_ATTEMPT": attempt,
        "SROBUST_CHECKPOINT_DIR": "",
        "MASTER_ADDR": first,
        "MASTER_PORT": str(port),
        "NNODES": str(spec.group_nodes),
        "WORLD_SIZE": str(spec.group_nodes * tasks),
    }


def argv(group: ReplayGroup, spec: ReplaySpec, place: ReplayPlace, port: int, limit_s: float) -> list[str]:
    """Return the command line of a group's step."""
    tasks = spec.tasks or max(1, place.gpus)
    command = spec.command
    if not command:
        root = str(Path(slurm_robust.__file__).resolve().parent.parent)
        divides = spec.tensor and spec.group_nodes * tasks % spec.tensor == 0
        tensor = spec.tensor if divides else tasks
        command = (place.python, "-c", _REFERENCE, root, str(tensor), f"{limit_s:.0f}")
    own = kept_options(spec.srun_options) if spec.srun_options else ["--mem=0", "--cpu-bind=none"]
    return [
        "srun",
        *own,
        "--overlap",
        f"--jobid={place.job_id}",
        f"--nodelist={','.join(group.nodes)}",
        f"--nodes={spec.group_nodes}",
        f"--ntasks={spec.group_nodes * tasks}",
        f"--ntasks-per-node={tasks}",
        "--kill-on-bad-exit=1",
        "--wait=0",
        "--job-name=srobust-replay",
        f"--input={'none' if spec.command else 'all'}",
        "--output=all",
        "--error=all",
        "--label",
        *([f"--chdir={spec.folder}"] if spec.folder else []),
        "--",
        *("/bin/sh", "-c", _TASK, "srobust-replay"),
        # Set by env, not by srun: `--export` may be anything, and without SROBUST_REPLAY a program would save.
        *(f"{name}={value}" for name, value in variables(group, spec, place, port, tasks).items()),
        *command,
    ]


class _GroupStep:
    """The running step of one group."""

    def __init__(self, group: ReplayGroup) -> None:
        self.group, self.output = group, StepOutput()
        self.code: int | None = None
        self.ended = False
        self.began_s = time.monotonic()
        self.took_s = 0.0
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        """Start srun; if that fails, the step has ended. Its tasks may read a secret from stdin."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(env),
                limit=_STREAM_LIMIT,
                start_new_session=True,
                preexec_fn=ending_with_parent(),
            )
        except OSError as error:
            self.output.complaint, self.ended, self.code = f"srun: {error.strerror}", True, 127
            return
        assert self._process.stdin is not None
        self._process.stdin.write(f"{secrets.token_hex(32)}\n".encode())
        self._process.stdin.close()
        self._watcher = asyncio.create_task(self._watch(self._process))

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        await asyncio.gather(self._read(process.stdout), self._read(process.stderr))
        code = await process.wait()
        self.code = self.code if self.ended else code
        self.took_s = time.monotonic() - self.began_s
        self.ended = True

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line longer than the limit: the reader has dropped it
                continue
            if not line:
                return
            if not self.ended:  # output while it is being ended is not a result
                self.output.take(line.decode("utf-8", "replace"))

    async def end(self) -> bool:
        """End srun, and with it the step; return False if Slurm may still count the step as running."""
        process, watcher = self._process, self._watcher
        if process is None or watcher is None:
            return True
        self.ended = True
        clean = True
        for action, wait_s in ((process.terminate, _TERM_S), (process.kill, _KILLED_S)):
            if process.returncode is not None:
                break
            clean = action == process.terminate
            with contextlib.suppress(ProcessLookupError):
                action()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), wait_s)
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        return clean


@dataclass(frozen=True)
class TestSurroundings:
    """The functions and facts that the run of the tests provides for the replay.

    Attributes:
        until: Waits until a condition holds, so many seconds at most, and keeps `gone` up to date.
        gone: Node that left the test → the reason.
        left_s: Returns the seconds that are left of the budget.
        progress: Tells the user a sentence.
        over: Returns whether the tests have ended, with the job.
    """

    until: Callable[[Callable[[], bool], float], Awaitable[bool]]
    gone: Mapping[str, str]
    left_s: Callable[[], float]
    progress: Callable[[str], None]
    over: Callable[[], bool]


class ReplayRun:
    """One replay of some nodes.

    Attributes:
        ended_early: Why the replay was not finished, as a sentence; empty if it was.
        left_steps: Steps such as `12.3` that srun could not end, so that Slurm must be told to end them.
    """

    def __init__(self, spec: ReplaySpec, place: ReplayPlace, around: TestSurroundings) -> None:
        self.ended_early = ""
        self.left_steps: list[str] = []
        self._spec, self._place, self._around = spec, place, around
        self._earlier: list[StepOutput] = []
        self._passed_s: list[float] = []

    async def run(self, nodes: Sequence[str]) -> ReplayVerdict:
        """Run all phases; no step of the replay runs when this returns or raises.

        Args:
            nodes: The nodes, neighbours beside each other.
        """
        results: list[ReplayResult] = []
        size = self._spec.group_nodes
        while groups := next_groups(nodes, size, results, AT_ONCE):
            phase = groups[0].phase
            # Two phases are needed, and a third one is useful.
            limit_s = self._around.left_s() / (4 - min(phase, 3))
            if limit_s < LEAST_WAVE_S:
                self.ended_early = f"the budget was used up before phase {phase} of the replay had ended"
                break
            self._around.progress(
                f"replay: phase {phase}, {len(groups)} group{'' if len(groups) == 1 else 's'} of {size} side by side, "
                f"{limit_s:.0f} s at most"
            )
            results += await self._wave(groups, limit_s)
            if self._around.over():
                break
        return judge(nodes, size, results)

    async def _wave(self, groups: Sequence[ReplayGroup], limit_s: float) -> list[ReplayResult]:
        first_port = secrets.choice(_PORTS)
        steps = [_GroupStep(group) for group in groups]
        env = step_environment(self._spec.environment)
        try:
            for number, step in enumerate(steps):
                words = argv(step.group, self._spec, self._place, first_port + number, limit_s)
                await step.start(words, env)
            began_s = time.monotonic()
            await self._around.until(lambda: self._done(steps, time.monotonic() - began_s), limit_s)
            took_s = time.monotonic() - began_s
        finally:
            await self._end(steps)
        outputs = [step.output for step in steps]
        self._passed_s += [step.took_s for step in steps if step.code == 0]
        # A hang only shows beside groups that passed long before; if none passed, all fail, which names no node.
        cut = bool(self._passed_s) and took_s < max(_HANG_LEAST_S, _CUT_FACTOR * max(self._passed_s, default=0.0))
        gone = self._around.gone
        results = [result_of(step.group, step.output, step.code, gone, took_s, cut=cut) for step in steps]
        judged = compared(results, outputs, self._earlier)
        self._earlier += outputs
        return judged

    def _done(self, steps: Sequence[_GroupStep], elapsed_s: float) -> bool:
        """Return whether nothing more is awaited: all groups have ended, or most passed long ago."""
        running = [s for s in steps if not s.ended and not set(s.group.nodes) & set(self._around.gone)]
        passed_s = [step.took_s for step in steps if step.ended and step.code == 0]
        enough = self._passed_s or 2 * len(passed_s) >= len(steps)
        longest_s = max([*passed_s, *self._passed_s], default=0.0)
        return not running or bool(enough and elapsed_s > max(_HANG_LEAST_S, _HANG_FACTOR * longest_s))

    async def _end(self, steps: Sequence[_GroupStep]) -> None:
        """End the steps that still run; steps that srun could not end are noted."""
        clean = await asyncio.gather(*(step.end() for step in steps))
        self.left_steps += [s.output.step for s, ended in zip(steps, clean, strict=True) if s.output.step and not ended]
