"""Supervises one job: launches the training, polls it, and acts on the results of its parts.

The supervisor runs beside the training, in another process than the launcher that started the user's srun. Only the
supervisor holds the current attempt, and replaces it at a relaunch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_robust.core.model import EXIT_STOPPED_FOR_GOOD, Grade, Road
from slurm_robust.marks import claim
from slurm_robust.policy.job.consequences import Silence, due
from slurm_robust.stoptime.run import TestRun
from slurm_robust.supervise.incident.dead_ranks import DeadRanks
from slurm_robust.supervise.incident.decider import Decider
from slurm_robust.supervise.incident.incident_handler import IncidentHandler
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.incident.quiet_captures import QuietCaptures
from slurm_robust.supervise.incident.resumption import Resumption
from slurm_robust.supervise.job import batch_script
from slurm_robust.supervise.launch import attempt_settings, messages, other_restarters, resume_points
from slurm_robust.supervise.launch.attempt_settings import ResumePoint
from slurm_robust.supervise.launch.channel import Channel
from slurm_robust.supervise.launch.srun_command import first_launch, labels_lines
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.lineage.training_report import TrainingReport
from slurm_robust.supervise.outcome import ExecutePlan, Outcome, Relaunch
from slurm_robust.supervise.recover import step_control
from slurm_robust.supervise.recover.ladder_climb import LadderClimb
from slurm_robust.supervise.recover.node_tests import NodeTests, StartTests
from slurm_robust.supervise.recover.plan_executor import PlanExecutor
from slurm_robust.supervise.recover.requeue_wait import WaitPhase
from slurm_robust.supervise.reported.suspicion import SilenceLevel
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.versions.code_keeper import CodeKeeper
from slurm_robust.supervise.warm.warm_restarts import WarmRestarts
from slurm_robust.supervise.watch.attached_end import AttachedEnd
from slurm_robust.supervise.watch.attempt_state import AttemptSources, AttemptState
from slurm_robust.supervise.watch.drain_watch import DrainWatch
from slurm_robust.supervise.watch.fault_watch import FaultWatch
from slurm_robust.supervise.watch.loss_watch import LossWatch
from slurm_robust.supervise.watch.losses import Losses
from slurm_robust.supervise.watch.observer import Observer
from slurm_robust.supervise.watch.slow_watch import SlowWatch
from slurm_robust.supervise.watch.slowness import Slowness

POLL_S = 0.2
_IN_ALLOCATION = (Road.RESTART_IN_PLACE, Road.SPARE_IN_ALLOCATION)
_KILLED_S = 3.0
_REFUSAL_S = 5.0
"""The pause after a refused launch: a loop of them in the script must not keep slurmctld busy."""


class Supervisor:
    """Supervises one job until its training ends, or until the job is requeued.

    Attributes:
        attempt: The current attempt.
    """

    def __init__(self, session: Session, start_tests: StartTests = TestRun) -> None:
        self._session = session
        self._launches = 0
        self._named = 0
        """How many names were given to attempts, including attempts that never began."""
        self._store = LineageStore(session)
        self._log = IncidentLog(session)
        self._losses = Losses(session)
        self._observer = Observer(session)
        self._decider = Decider(session, self._log, self._losses)
        self._handler = IncidentHandler(session, self._log, self._decider, self._observer)
        self._code = CodeKeeper(session, self._store, self._log)
        self._executor = PlanExecutor(session, self._store, self._log, self._losses, self._code)
        tests = NodeTests(session, self._log, self._observer, start_tests)
        self._ladder = LadderClimb(session, self._store, self._decider, self._executor, tests)
        self._attached_end = AttachedEnd(session)
        self._warm = WarmRestarts(session, self._environment_of_next, self._new_name)
        self._drain_watch = DrainWatch(session)
        self._training_report = TrainingReport(session)
        attached = session.attached
        name = attached.attempt if attached is not None else ""
        self._begin_attempt(name, seen=attached is None or bool(attached.launcher))

    def _begin_attempt(self, name: str, *, seen: bool = True, read_from: Mapping[str, int] | None = None) -> None:
        """Replace the current attempt.

        An attempt that is not `seen` had begun before its output was read; `read_from` says where its output begins.
        """
        session = self._session
        sources = AttemptSources(
            session.job.job_id,
            session.job.nodes,
            session.output_files,
            session.layout,
            session.layout_order,
            session.settings.log_pattern,
            labelled=session.command is not None and labels_lines(session.command, session.environment),
            read_from=read_from or {},
        )
        self.attempt = attempt = AttemptState(name, sources, session.clock)
        session.fleet = attempt.fleet
        relaunched = self._launches > 1
        self._start = AttemptStart(session, attempt, self._store, seen=seen, relaunched=relaunched)
        self._resumption = Resumption(session, attempt, self._start, self._store, self._log)
        self._training_report.begin(attempt, self._start)
        self._dead_ranks = DeadRanks(session, attempt)
        self._quiet_captures = QuietCaptures(session, attempt, self._start)
        self._slowness = Slowness(session, attempt)
        self._slow_watch = SlowWatch(session)
        self._loss_watch, self._losses.lost = LossWatch(session, attempt), ""
        self._fault_watch = FaultWatch(session, attempt)

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Supervise the job; return the exit code for the script."""
        session, job, channel, attached = (
            self._session,
            self._session.job,
            self._session.channel,
            self._session.attached,
        )
        if job.claim.incident:
            self._log.reopen(job.claim.incident)
        if attached is not None and not (job.can_claim and job.info.batch):
            # A decision could not be reported, or a user at a terminal sees the end: srun need not wait for a decision.
            attached.release()
        self._report_other_restarters()
        early = channel.early if channel is not None else None
        first = channel is not None and (early is not None or not channel.running_attempt) and channel.ended is None
        if channel is not None and first and (why := self._store.launch_refusal()):
            if early is not None:
                # The launcher only knows the memory in the job's folder, and the folder may have been another one each
                # time.
                channel.kill()
                await channel.wait_ended(_KILLED_S)
            if channel.ended != 0:
                return await self._refuse(channel, why)
        await self._code.prepare()
        self._launch_first()
        if channel is not None and early is None and job.requeue_requested and channel.ended is not None:
            # The supervisor before this one was killed while it waited for the requeue.
            return await self._await_requeue(channel)
        if channel is not None:
            # A fault between the start of the job and the start of its agents is news; older faults are not the job's.
            session.agents.look_back(max(0.0, session.clock.now_s() - job.attempt.start_at_s))
        await session.agents.start(session.allocation.nodes, self.attempt.name)
        await job.write_claim(resume_step=self.attempt.resume_point.step)
        self._warm.start()
        code: int | None = None
        try:
            while code is None:
                await session.clock.sleep(POLL_S)
                code = await self.poll()
        finally:
            if attached is not None:
                attached.release()
            await self._warm.stop()
            await session.agents.stop()
        if channel is not None:
            await channel.exit(code)
        return code

    async def _await_requeue(self, channel: Channel) -> int:
        """Go on waiting for the requeue that this attempt has requested; the claim stays as it is."""
        session = self._session
        assert session.job.previous is not None
        text = "the supervisor was started anew; it waits for the requeue that was requested"
        session.folder.log_event("note", text)
        code = await step_control.wait_for_requeue(session, session.job.previous, WaitPhase.ASKED)
        await channel.exit(code)
        return code

    async def _refuse(self, channel: Channel, why: str) -> int:
        """Refuse to launch: too many launches of this job have made no new step."""
        session = self._session
        session.folder.log_event("refused", why)
        await session.job.write_claim(state=claim.STATE_DONE, why=why)
        await session.clock.sleep(_REFUSAL_S)
        await channel.exit(EXIT_STOPPED_FOR_GOOD)
        return EXIT_STOPPED_FOR_GOOD

    async def poll(self) -> int | None:
        """Poll the attempt once, and act; return the exit code if the supervision is over."""
        session, attempt = self._session, self.attempt
        await self._observer.poll(attempt)
        if session.launcher_gone or (session.channel is None and await self._attached_end.reached(attempt)):
            await self._attached_end.report(attempt)
            return 0  # no process takes an exit code any more
        self._store.paused(attempt.pauses)
        self._training_report.poll(calm=self._log.current is None)
        await self._resumption.poll()
        self._warm.observe(attempt, calm=self._log.current is None)
        if session.srun_exit_code == 0:
            return await self._finish()
        outcome = await self._handle()
        if isinstance(outcome, ExecutePlan) and (by := session.user_end):
            self._log.close(f"The user ended the step ({by}) before anything was done.")
            return None
        if isinstance(outcome, ExecutePlan) and outcome.plan.road is Road.TEST:
            outcome = await self._ladder.climb(outcome, attempt)
        if isinstance(outcome, ExecutePlan):
            if outcome.plan.road in _IN_ALLOCATION:
                self._warm.expect()
            else:
                self._warm.drop()
            result = await self._executor.execute(outcome, attempt, self._start)
            if isinstance(result, Relaunch):
                await self._relaunch(result)
                return None
            return result.code
        return outcome.code if outcome is not None else None

    async def _handle(self) -> Outcome:
        """Handle what is wrong with the attempt, if anything is."""
        session, attempt, start = self._session, self.attempt, self._start
        if by := session.user_end:
            return await self._handler.ended_by_user(by) if session.srun_exit_code is not None else None
        if session.srun_exit_code is not None:
            return await self._handler.step_failed(attempt, start, session.srun_exit_code)
        if await self._dead_ranks.decide_now():
            dead = self._dead_ranks
            return await self._handler.rank_died(attempt, start, dead.investigation, waited_for=dead.waited_for)
        await self._drain_watch.poll(attempt)
        faults = await self._fault_watch.poll()
        if faults is not None:
            return await self._handler.node_faults(attempt, start, faults)
        update = await self._code.poll(attempt, start)
        return update if update is not None else await self._handle_running()

    async def _handle_running(self) -> Outcome:
        """Handle what may be wrong with an attempt that runs: it is silent, its loss is bad, it is slow."""
        session, attempt, start = self._session, self.attempt, self._start
        assessment = attempt.assess(session.settings)
        level = assessment.level
        suspect = level is SilenceLevel.OVERDUE
        if level is SilenceLevel.SUSPECT:
            suspect = not self._log.full or self._outlasts_healthy_pauses(assessment.silent_s)
        if suspect and session.clock.now_s() >= attempt.quiet_until_s:
            return await self._handler.silent(attempt, start, assessment)
        moves = attempt.last_sign_s > attempt.left_alone_at_s  # else a hang that was told still lasts
        if level is SilenceLevel.QUIET and attempt.reports and self._log.current is None and moves:
            session.job.withdraw_suspicion()
            if attempt.left_alone_at_s > 0:
                attempt.quiet_until_s = attempt.left_alone_at_s = 0.0
                session.folder.log_event("cleared", "training moves again by itself; nothing was done")
        self._losses.take(attempt)
        if why := self._loss_watch.poll(had_finite=self._losses.had_finite):
            self._losses.lost = why
            return await self._handler.bad_loss(attempt, start, why)
        self._slowness.poll()
        if why := await self._slow_watch.poll(self._slowness.unnamed):
            return await self._handler.slow(attempt, start, why)
        proven = await self._quiet_captures.poll()
        return await self._handler.proven(attempt, start, proven) if proven is not None else None

    def _outlasts_healthy_pauses(self, silent_s: float) -> bool:
        """Return whether strong evidence would be acted on by now: no healthy pause of this kind was nearly as long."""
        pauses, settings = self._start.pauses, self._session.settings
        return due(Grade.STRONG, Silence.of(silent_s, self.attempt.pause_kind, pauses, settings))

    async def _finish(self) -> int:
        """Finish after srun has ended well."""
        session, step = self._session, self.attempt.step
        await self._resumption.close_incident(max(step, self.attempt.resume_point.step))
        session.folder.log_event("finished", f"finished at step {step}" if step >= 0 else "finished", step=step)
        self._store.forget()
        await session.job.write_claim(state=claim.STATE_DONE, step=step, fruitless=0)
        return 0

    def _report_other_restarters(self) -> None:
        """Report other programs that restart this job, in its first run."""
        session = self._session
        if session.command is not None and not session.job.restart_count:
            for text in other_restarters.found(session.command.command, session.environment, batch_script()):
                session.folder.log_event("note", f"another restarter: {text}")

    # -- launching ----------------------------------------------------------------------------------------------------

    def _new_name(self) -> str:
        """Return a name for one more launch of this run of the job."""
        self._named += 1
        job = self._session.job
        return attempt_settings.attempt_name(job.name, job.restart_count, os.getppid(), self._named)

    def _launch_first(self) -> None:
        session, channel = self._session, self._session.channel
        if channel is None or session.command is None:
            self.attempt.resume_point = resume_points.look_up(session.checkpoint_dir)
            return
        if channel.early is not None:
            self._take_early(channel.early)
            return
        running = channel.running_attempt
        session.allocation.evicted = set(channel.evicted)
        if running:
            # The supervisor before this one was killed; the training goes on, and so does the watch.
            last = running.rpartition(".")[2]
            self._launches = int(last) if last.isdecimal() else 1
            self._named = self._launches + 1  # one more may have been given to a warm step
            self._begin_attempt(running, seen=False)
            session.folder.log_event("note", "the supervisor was started anew; the training was not touched")
            return
        command = session.launched(session.command)
        self._launches += 1
        self._launch(channel, first_launch(command, keep_evidence=session.acting), self._look_up())

    def _take_early(self, early: messages.StartedEarly) -> None:
        """Take over the srun that the launcher has started before there was a supervisor."""
        self._launches = self._named = 1
        path = Path(early.resume_path) if early.resume_path else None
        point = ResumePoint(path, early.resume_step, early.notes, early.searched, early.skipped)
        self._log_resume_point(point)
        self._begin_attempt(early.attempt, read_from=early.output_from)
        self.attempt.resume_point = point
        self._store.take_name(early.lineage)

    def _look_up(self) -> ResumePoint:
        """Return the newest verified checkpoint, after writing it into the story."""
        resume_point = resume_points.look_up(self._session.checkpoint_dir)
        self._log_resume_point(resume_point)
        return resume_point

    def _log_resume_point(self, point: ResumePoint) -> None:
        folder = self._session.folder
        for note in point.notes:
            folder.log_event("checkpoint", note)
        if point.path is not None:
            folder.log_event("checkpoint", f"step {point.step} is verified: {point.path}", step=point.step)

    def _launch(self, channel: Channel, argv: Sequence[str], resume_point: ResumePoint) -> None:
        """Have srun started, from this checkpoint."""
        name, session = self._new_name(), self._session
        env = self._begin_launch(name, resume_point)
        env |= self._warm.recording({**session.environment, **env})
        channel.launch(messages.LaunchSrun(name, tuple(argv), env, (), tuple(sorted(session.allocation.evicted))))
        session.agents.watch_attempt(name)

    async def _launch_warm(self, argv: Sequence[str], resume_point: ResumePoint) -> bool:
        """Have the attempt begin in waiting warm processes; return False if it has to start cold."""
        name = await self._warm.take(argv)
        if not name or not await self._warm.release(self._begin_launch(name, resume_point)):
            return False
        self._session.agents.watch_attempt(name)
        return True

    def _begin_launch(self, name: str, resume_point: ResumePoint) -> dict[str, str]:
        """Begin the state of an attempt that is being launched; return its variables."""
        session = self._session
        heard = session.fleet.heard_at_s
        self._begin_attempt(name)
        self.attempt.resume_point = resume_point
        session.fleet.heard_at_s = heard  # the agents stay; only their attempt is new
        return self._environment(name, resume_point)

    def _environment(self, name: str, resume_point: ResumePoint) -> dict[str, str]:
        """Return the variables of an attempt."""
        session = self._session
        dumps = session.folder.subfolder("fr")  # PyTorch does not create it, and writes no dump without it
        lineage = self._store.lineage.id
        env = attempt_settings.environment(
            session.environment, name, lineage, resume_point, dumps, command=session.command
        )
        if session.code is not None:
            env |= session.code.environment({**session.environment, **env})
        if self._launches > 1:
            env |= attempt_settings.fresh_rendezvous(session.environment, name, session.allocation.nodes)
        return env

    def _environment_of_next(self, name: str) -> dict[str, str]:
        """Return the variables of an attempt that may begin later, without its checkpoint, which is not known yet."""
        env = self._environment(name, self.attempt.resume_point)
        rendezvous = attempt_settings.fresh_rendezvous(self._session.environment, name, self._session.allocation.nodes)
        return {**env, **rendezvous}

    async def _relaunch(self, relaunch: Relaunch) -> None:
        """Start srun again in the allocation."""
        session, allocation, log = self._session, self._session.allocation, self._log
        assert session.channel is not None
        allocation.evicted |= relaunch.evict
        nodes, used = allocation.nodes, relaunch.nodes_used
        self._launches += 1
        resume_point = self._look_up()
        warm = await self._launch_warm(relaunch.argv, resume_point)
        if not warm:
            self._launch(session.channel, relaunch.argv, resume_point)
        log.set_time("running")
        number = f"{used} of " if used and used < len(nodes) else ""
        how = "warm processes were released" if warm else "srun was started anew"
        text = f"{how} for the training step; it may use {number}{','.join(nodes)}"
        session.folder.log_event("relaunched", text, incident=log.incident.id, evicted=sorted(allocation.evicted))
        log.save()
        await session.job.write_claim(incident=log.incident.id, times=dict(log.incident.times))
