"""Keeps a warm step beside the training, and has the next attempt in this allocation start from it.

A warm step is a second step of the same command. Each of its processes has imported what the running ranks have
imported, and waits before the program's first line. The supervisor waits for its processes for `patience_s` at most: if
a process does not answer, or the next attempt has another shape, the attempt starts cold, and the story says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from slurm_robust.supervise.agent import packing
from slurm_robust.supervise.agent.messages import CleanUp
from slurm_robust.supervise.agent.warm_messages import AskWarm, WarmAnswer
from slurm_robust.supervise.launch import messages
from slurm_robust.supervise.launch.srun_command import relaunch
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.warm import fitness
from slurm_robust.supervise.warm.questions import Questions, tasks_in, unpacked
from slurm_robust.supervise.warm.warm_step import WarmStep
from slurm_robust.supervise.watch.attempt_state import AttemptState

_NULL = asyncio.subprocess.DEVNULL
_TICK_S = 1.0
_SETTLE_S = 5.0
"""An attempt that has made new steps for this long stands."""
_ANSWERS_S = 5.0
"""Time for the agents' answers in the background, while no recovery waits."""
_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 1.0, 3.0
_PATIENCE_SHARE = 0.1
"""At a restart, answers are waited for at most this share of the time that a warm step saves."""
_PREPARED_S = 300.0
_PREPARE_AGAIN_S = 5.0
_STATE_EVERY_S = 5.0
_PROBE_S = 20.0
_END_S = 1.0
_KILL_S = 2.0
_POLL_S = 0.01
_ROOM_AGAIN_S = 120.0
_MOST_LEFT_OUT = 8
_FAILURES = 3
_SILENT = 2
"""After so many questions in a row, five seconds apart, without an answer, a warm process counts as lost."""


class WarmRestarts:
    """Starts warm steps and releases them.

    Args:
        session: The session of the supervisor.
        environment: Returns the variables that an attempt of this name would have now.
        next_name: Returns a name for an attempt that may begin later.

    Attributes:
        refused: Why there are no warm restarts; empty if there are.
    """

    def __init__(
        self, session: Session, environment: Callable[[str], Mapping[str, str]], next_name: Callable[[], str]
    ) -> None:
        self._session = session
        self._environment = environment
        self._next_name = next_name
        self._step: WarmStep | None = None
        self._attempt: AttemptState | None = None
        self._calm = True
        self._stood_since_s: float | None = None
        self._not_before_s = 0.0
        self._left_out: list[str] = []
        self._failures = 0
        self._asked = Questions(session)
        self._probed = False
        self._said: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._check: asyncio.Task[dict[str, WarmAnswer]] | None = None
        self._endings: set[asyncio.Task[None]] = set()
        self.refused = self._refusal()

    @property
    def wanted(self) -> bool:
        """Whether this job asks for warm restarts."""
        return self._session.settings.warm_restarts

    def _refusal(self) -> str:
        session = self._session
        if not self.wanted:
            return "they are not asked for"
        if session.channel is None or session.command is None:
            return "this supervisor starts no step of its own, so no restart takes place in the allocation"
        if not session.acting:
            return "in observe mode nothing is restarted"
        if fitness.reads_input(f"/proc/{os.getppid()}/fd/0"):
            return "standard input is not /dev/null: a second step would take lines from the first one"
        return fitness.refusal(session.command, session.environment)

    def recording(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return further variables with which ranks record what they import; empty if that is not needed."""
        return {} if self.refused else fitness.environment("record", env)

    # -- keeping a warm step ------------------------------------------------------------------------------------------

    def observe(self, attempt: AttemptState, *, calm: bool) -> None:
        """Note how the attempt does; `calm` if no incident is open."""
        if attempt is not self._attempt:
            self._attempt, self._stood_since_s = attempt, None
        if attempt.step > attempt.resume_point.step and self._stood_since_s is None:
            self._stood_since_s = self._session.clock.monotonic_s()
        self._calm = calm

    def start(self) -> None:
        """Begin to keep a warm step, in the background."""
        if self.wanted and self.refused:
            self._say(f"no warm restarts: {self.refused}")
        elif not self.refused:
            self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End the warm step, within a limit, and do not start another one."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self.drop()
        if self._endings:
            await asyncio.wait(self._endings, timeout=_END_S + 0.2)

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._session.folder.log_event("warm", text)

    async def _keep(self) -> None:
        while not self.refused:
            await self._session.clock.sleep(_TICK_S)
            await self.tick()

    async def tick(self) -> None:
        """Start a warm step if one is due, or look after the present one."""
        try:
            await (self._begin_when_due() if self._step is None else self._look_after(self._step))
        except Exception as error:  # noqa: BLE001 (no fault of this may end the supervisor)
            self._failed(f"{type(error).__name__}: {error}"[:200])

    def _failed(self, why: str) -> None:
        """Give the warm step up; after a few times, for good."""
        self._failures += 1
        self.drop()
        self._not_before_s = self._session.clock.monotonic_s() + _ROOM_AGAIN_S
        if self._failures >= _FAILURES:
            self.refused = why
            self._say(f"no more warm restarts: {why}")
        else:
            self._say(f"the warm step was given up: {why}")

    def _stands(self) -> bool:
        channel, now_s = self._session.channel, self._session.clock.monotonic_s()
        if channel is None or channel.ended is not None or not self._calm or self._stood_since_s is None:
            return False
        return now_s - self._stood_since_s >= _SETTLE_S and now_s >= self._not_before_s and self._session.fleet.complete

    async def _begin_when_due(self) -> None:
        session, fleet = self._session, self._session.fleet
        if not self._stands() or session.channel is None or session.command is None:
            return
        if not self._probed and (why := await self._probe()):
            self.refused = why
            self._say(f"no warm restarts: {why}")
            return
        self._probed = True
        processes = Counter(rank.node for rank in fleet.alive)
        rooms = await self._asked.agents("room", list(processes), _ANSWERS_S)
        available = {node: answer.available_bytes for node, answer in rooms.items()}
        if why := fitness.memory_refusal(available, processes, session.settings.warm_mib):
            self._say(f"no warm step: {why}")
            self._not_before_s = session.clock.monotonic_s() + _ROOM_AGAIN_S
            return
        node = next(iter(processes))
        records = await self._asked.agents("record", [node], _ANSWERS_S)
        record = unpacked(records[node].packed) if node in records else ""
        if not record:
            # If something (a task prolog, say) removed our file from the ranks' Python, it would remove it from warm
            # processes: they would run the program beside the one that trains.
            self._failed("what the ranks have imported could not be learnt")
            return
        if not self._stands() or fleet is not session.fleet:
            return
        used = fleet.step_nodes or len(processes)
        argv = tuple(relaunch(session.launched(session.command), session.allocation.evicted, used or None))
        name = self._next_name()
        env = dict(self._environment(name))
        ours = fitness.environment("wait", {**session.environment, **env})
        order = {"record": record, "extra": session.settings.warm_modules, "left_out": self._left_out}
        self._step = WarmStep(name, argv, env, fleet.world, session.clock.monotonic_s(), code=session.code)
        self._step.order = packing.pack(order)
        session.channel.warm(messages.StartWarm(name, argv, {**env, **ours}, ()))

    async def _probe(self) -> str:
        """Probe whether the program's Python loads our sitecustomize.py; return a sentence if it does not.

        Without it a warm process would run the program beside the training.
        """
        session = self._session
        assert session.command is not None
        words = fitness.python_words(session.launched(session.command).command)
        env = {**session.environment, **fitness.environment("probe", session.environment)}
        try:
            probe = await asyncio.create_subprocess_exec(
                *words, "-c", "", env=env, stdin=_NULL, stdout=_NULL, stderr=_NULL, start_new_session=True
            )
        except OSError as error:
            return f"{words[0]} cannot be started here: {error.strerror}"
        try:
            code = await asyncio.wait_for(probe.wait(), _PROBE_S)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                probe.kill()
            return f"{words[0]} did not start within {_PROBE_S:g} s"
        return "" if code == fitness.PROBED else f"{words[0]} does not load sitecustomize.py from PYTHONPATH"

    async def _look_after(self, step: WarmStep) -> None:
        session, now_s = self._session, self._session.clock.monotonic_s()
        ended = session.channel.warm_ended if session.channel is not None else None
        if ended is not None and ended.attempt == step.name:
            self._failed(f"its srun ended (exit {ended.code}){': ' + ended.text if ended.text else ''}")
        elif not step.ready:
            await self._prepare(step, now_s)
        elif now_s >= step.look_at_s:
            step.look_at_s = now_s + _STATE_EVERY_S
            answers = await self._asked.processes("memory", step, _ANSWERS_S)
            missing = set(range(step.tasks)) - tasks_in(answers)
            step.silent = step.silent + 1 if missing else 0
            if step.silent >= _SILENT and self._step is step:
                self._failed(f"{len(missing)} of its {step.tasks} processes have ended, or do not answer")
            else:
                self._judge_memory(step, answers)

    async def _prepare(self, step: WarmStep, now_s: float) -> None:
        """Have the step's processes import, and check whether they are ready."""
        session = self._session
        if now_s - step.started_s > _PREPARED_S:
            self._failed(f"its processes were not ready after {_PREPARED_S:g} s")
            return
        answers = await self._asked.processes("memory", step, _ANSWERS_S)
        if self._step is not step:
            return
        refused = next((a for a in answers.values() if a.refused), None)
        if refused is not None:
            self._refuse(refused)
        elif tasks_in(answers) >= set(range(step.tasks)):
            step.ready, self._failures = True, 0
            step.modules = min(a.modules for a in answers.values() if a.tasks)
            step.seconds = max(a.seconds for a in answers.values())
            step.patience_s = min(_MOST_PATIENCE_S, max(_LEAST_PATIENCE_S, _PATIENCE_SHARE * step.seconds))
            most, node = max((a.memory_bytes, a.node) for a in answers.values())
            session.folder.log_event(
                "warm",
                f"{step.tasks} warm processes have imported {step.modules} modules in {step.seconds:.1f} s and wait; "
                f"they take {most // fitness.MIB} MiB on {node}, and no GPU",
                attempt=step.name,
                modules=step.modules,
                seconds=step.seconds,
                memory_bytes=most,
            )
        elif now_s >= step.prepare_at_s:
            # Sent again for processes that have come since; processes that have already imported ignore it.
            step.prepare_at_s = now_s + _PREPARE_AGAIN_S
            session.agents.send(AskWarm(0, step.name, "prepare", step.order))

    def _refuse(self, answer: WarmAnswer) -> None:
        """Handle a process that must not become a rank: try again without the offending module, or give up."""
        self.drop()
        if not answer.offender or len(self._left_out) >= _MOST_LEFT_OUT or answer.offender in self._left_out:
            self.refused = answer.refused
            self._say(f"no warm restarts: {answer.refused}")
            return
        self._left_out.append(answer.offender)
        self._say(f"warm processes leave out {answer.offender}: {answer.refused}")

    def _judge_memory(self, step: WarmStep, answers: Mapping[str, WarmAnswer]) -> None:
        """End the warm step if memory runs short: the training comes first."""
        for node, answer in sorted(answers.items()):
            if 0 <= answer.available_bytes < answer.memory_bytes and self._step is step:
                left, held = answer.available_bytes // fitness.MIB, answer.memory_bytes // fitness.MIB
                self.drop()
                self._not_before_s = self._session.clock.monotonic_s() + _ROOM_AGAIN_S
                self._say(f"the warm step was ended: {left} MiB are left on {node}, and it holds {held} MiB there")
                return

    # -- releasing it -------------------------------------------------------------------------------------------------

    def expect(self) -> None:
        """Ask whether the warm processes live, while a restart in the allocation is about to come."""
        if self._step is not None and self._step.ready:
            self._check = asyncio.create_task(self._asked.processes("state", self._step, self._step.patience_s))

    async def take(self, argv: Sequence[str]) -> str:
        """Return the name of the attempt that can start warm at once with this srun; empty to start cold."""
        step, check, self._check = self._step, self._check, None
        if step is None:
            if not self.refused:
                self._say_cold("there was no warm step yet")
            return ""
        why = ""
        if tuple(argv) != step.argv or step.code != self._session.code:
            why = "the warm step is of another shape: other nodes, or another version of the code"
        elif not step.ready:
            why = "its processes are still importing"
        else:
            answers = await (check or self._asked.processes("state", step, step.patience_s))
            missing = set(range(step.tasks)) - tasks_in(answers)
            why = f"{len(missing)} of {step.tasks} warm processes do not answer" if missing else ""
        if not why:
            return step.name
        self._say_cold(why)
        self.drop()
        return ""

    async def release(self, env: Mapping[str, str]) -> bool:
        """Have the attempt begin, in this environment; return False if it has to start cold after all."""
        step, session = self._step, self._session
        assert session.channel is not None
        if step is None:
            return False
        changed = {key: value for key, value in env.items() if step.env.get(key) != value}
        removed = [key for key in step.env if key not in env]
        order = packing.pack({"set": changed, "unset": removed})
        answers = await self._asked.processes("go", step, step.patience_s, packed=order)
        missing = set(range(step.tasks)) - tasks_in(answers)
        if missing:
            self._say_cold(f"{len(missing)} of {step.tasks} warm processes did not start the program")
            self.drop()
            return False
        self._step = None
        session.channel.warm(messages.AdoptWarm(step.name, tuple(sorted(session.allocation.evicted))))
        session.folder.log_event(
            "warm",
            f"the attempt starts from {step.tasks} warm processes: {step.seconds:.1f} s for starting Python and "
            f"importing {step.modules} modules were spent beforehand",
            attempt=step.name,
            saved_s=step.seconds,
        )
        return True

    def _say_cold(self, why: str) -> None:
        self._session.folder.log_event("warm", f"the attempt starts cold: {why}")

    def drop(self) -> None:
        """End the warm step, if there is one, without waiting for its end."""
        step, self._step = self._step, None
        if step is not None:
            # The agents kill first, even stopped processes: then srun ends by itself, and its step with it.
            self._session.agents.send(CleanUp(0, step.name, _KILL_S))
            ending = asyncio.create_task(self._end(step.name))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _end(self, name: str) -> None:
        session = self._session
        assert session.channel is not None
        until_s = session.clock.monotonic_s() + _END_S
        while session.clock.monotonic_s() < until_s:
            ended = session.channel.warm_ended
            if ended is not None and ended.attempt == name:
                return
            await session.clock.sleep(_POLL_S)
        session.channel.warm(messages.EndWarm(name))
