"""The supervisor of one job: launches the training, polls it, and acts on what its parts return.

It runs beside the training, in another process than the launcher that started the user's srun. It alone holds the
current attempt, and replaces it at a relaunch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from slurm_robust import claim
from slurm_robust.model import EXIT_STOPPED_FOR_GOOD
from slurm_robust.supervise.incident.incident_handler import IncidentHandler
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.job import batch_script
from slurm_robust.supervise.launch import attempt_settings, messages, other_restarters
from slurm_robust.supervise.launch.channel import Channel
from slurm_robust.supervise.launch.srun_command import first_launch, labels_lines
from slurm_robust.supervise.outcome import ExecutePlan, Outcome, Relaunch
from slurm_robust.supervise.recover import step_control
from slurm_robust.supervise.recover.attempt_start import AttemptStart
from slurm_robust.supervise.recover.lineage_store import LineageStore
from slurm_robust.supervise.recover.plan_executor import PlanExecutor
from slurm_robust.supervise.recover.requeue_wait import WaitPhase
from slurm_robust.supervise.recover.resumption import Resumption
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.versions.code_keeper import CodeKeeper
from slurm_robust.supervise.watch.attached_end import AttachedEnd
from slurm_robust.supervise.watch.attempt_state import AttemptSources, AttemptState, Observer
from slurm_robust.supervise.watch.drain_watch import DrainWatch
from slurm_robust.supervise.watch.fault_watch import FaultWatch
from slurm_robust.supervise.watch.losses import Losses
from slurm_robust.supervise.watch.quiet_captures import QuietCaptures
from slurm_robust.supervise.watch.slowness import Slowness
from slurm_robust.supervise.watch.suspicion import SilenceLevel

POLL_S = 0.2
_REFUSAL_S = 5.0
"""A loop in the script whose launches are refused must not keep slurmctld busy."""


class Supervisor:
    """Supervises one job until its training ends, or until the job is requeued.

    Attributes:
        attempt: The current attempt.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._launches = 0
        self._store = LineageStore(session)
        self._log = IncidentLog(session)
        self._losses = Losses(session)
        self._observer = Observer(session)
        self._handler = IncidentHandler(session, self._log, self._losses, self._observer)
        self._code = CodeKeeper(session, self._store, self._log)
        self._executor = PlanExecutor(session, self._store, self._log, self._losses, self._code)
        self._attached_end = AttachedEnd(session)
        self._drain_watch = DrainWatch(session)
        attached = session.attached
        name = attached.attempt if attached is not None else ""
        self._begin_attempt(name, seen=attached is None or bool(attached.launcher))

    def _begin_attempt(self, name: str, *, seen: bool = True) -> None:
        """Replace the current attempt.

        One that is not `seen` had begun before its output was read.
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
        )
        self.attempt = attempt = AttemptState(name, sources, session.clock)
        session.fleet = attempt.fleet
        relaunched = self._launches > 1
        self._start = AttemptStart(session, attempt, self._store, seen=seen, relaunched=relaunched)
        self._resumption = Resumption(session, attempt, self._start, self._store, self._log)
        self._quiet_captures = QuietCaptures(session, attempt)
        self._slowness = Slowness(session, attempt)
        self._fault_watch = FaultWatch(session, attempt)

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Supervise; returns the exit code for the script."""
        session, job, channel, attached = (
            self._session,
            self._session.job,
            self._session.channel,
            self._session.attached,
        )
        if job.claim.incident:
            self._log.reopen(job.claim.incident)
        if attached is not None and not (job.can_claim and job.info.requeueable):
            attached.release()  # no decision could bring the step back, so srun need not wait for one
        self._report_other_restarters()
        if channel is not None and not channel.running_attempt and (why := self._store.launch_refusal()):
            return await self._refuse(channel, why)
        await self._code.prepare()
        self._launch_first()
        if channel is not None and job.requeue_requested and channel.ended is not None:
            # The supervisor before this one was killed while it waited for the requeue.
            return await self._await_requeue(channel)
        if channel is not None:
            # A fault between the start of the job and that of its agents is news; what is older was there before it.
            session.agents.look_back(max(0.0, session.clock.now_s() - job.attempt.start_at_s))
        await session.agents.start(session.allocation.nodes, self.attempt.name)
        await job.write_claim(resume_step=self.attempt.resume_point.step)
        code: int | None = None
        try:
            while code is None:
                await session.clock.sleep(POLL_S)
                code = await self.poll()
        finally:
            if attached is not None:
                attached.release()
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
        """Launch nothing: too many launches of this job have made no new step."""
        session = self._session
        session.folder.log_event("refused", why)
        await session.job.write_claim(state=claim.STATE_DONE, why=why)
        await session.clock.sleep(_REFUSAL_S)
        await channel.exit(EXIT_STOPPED_FOR_GOOD)
        return EXIT_STOPPED_FOR_GOOD

    async def poll(self) -> int | None:
        """Poll the attempt once, and act; returns the exit code where the supervision is over."""
        session, attempt = self._session, self.attempt
        await self._observer.poll(attempt)
        if session.launcher_gone or (session.channel is None and await self._attached_end.reached(attempt)):
            await self._attached_end.report(attempt)
            return 0  # nobody takes an exit code any more
        await self._resumption.poll()
        if session.srun_exit_code == 0:
            return await self._finish()
        outcome = await self._handle()
        if isinstance(outcome, ExecutePlan):
            result = await self._executor.execute(outcome, attempt, self._start)
            if isinstance(result, Relaunch):
                await self._relaunch(result)
                return None
            return result.code
        return outcome.code if outcome is not None else None

    async def _handle(self) -> Outcome:
        """Handle what is wrong with the attempt, if anything is."""
        session, attempt, start = self._session, self.attempt, self._start
        if session.srun_exit_code is not None:
            return await self._handler.step_failed(attempt, start, session.srun_exit_code)
        if attempt.exits:
            return await self._handler.rank_died(attempt, start)
        await self._drain_watch.poll(attempt)
        due = await self._fault_watch.poll()
        if due is not None:
            return await self._handler.node_faults(attempt, start, due)
        update = await self._code.poll(attempt, start)
        if update is not None:
            return update
        assessment = attempt.assess(session.settings)
        level = assessment.level
        suspect = level is SilenceLevel.OVERDUE or (level is SilenceLevel.SUSPECT and not self._log.full)
        if suspect and session.clock.now_s() >= attempt.quiet_until_s:
            return await self._handler.silent(attempt, start, assessment)
        if level is SilenceLevel.QUIET and attempt.reports and self._log.current is None:
            session.job.withdraw_suspicion()
        self._losses.take(attempt)
        self._slowness.poll()
        proven = await self._quiet_captures.poll()
        return await self._handler.proven(attempt, start, proven) if proven is not None else None

    async def _finish(self) -> int:
        """Srun has ended well."""
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

    def _attempt_name(self, launch: int) -> str:
        """Name of the nth launch of this run of the job."""
        # The launcher's pid tells the runs of one script apart; a supervisor that is started anew has the same parent.
        job = self._session.job
        return f"{job.name.replace('+', '_')}.{job.restart_count}.{os.getppid()}.{launch}"

    def _launch_first(self) -> None:
        session, channel = self._session, self._session.channel
        if channel is None or session.command is None:
            self.attempt.resume_point = attempt_settings.look_up(session.checkpoint_dir)
            return
        running = channel.running_attempt
        session.allocation.evicted = set(channel.evicted)
        if running:
            # The supervisor before this one was killed; the training goes on, and so does the watch.
            last = running.rpartition(".")[2]
            self._launches = int(last) if last.isdecimal() else 1
            self._begin_attempt(running, seen=False)
            session.folder.log_event("note", "the supervisor was started anew; the training was not touched")
            return
        command = session.launched(session.command)
        self._launch(channel, first_launch(command, keep_evidence=session.acting), {})

    def _launch(self, channel: Channel, argv: list[str], extra: Mapping[str, str]) -> None:
        """Have srun started, from the newest verified checkpoint."""
        session, folder = self._session, self._session.folder
        self._launches += 1
        name = self._attempt_name(self._launches)
        resume_point = attempt_settings.look_up(session.checkpoint_dir)
        for note in resume_point.notes:
            folder.log_event("checkpoint", note)
        if resume_point.path is not None:
            text = f"step {resume_point.step} is verified: {resume_point.path}"
            folder.log_event("checkpoint", text, step=resume_point.step)
        heard = session.fleet.heard_at_s
        self._begin_attempt(name)
        self.attempt.resume_point = resume_point
        session.fleet.heard_at_s = heard  # the agents stay; only their attempt is new
        dumps = folder.subfolder("fr")  # PyTorch does not create it, and writes no dump without it
        lineage = self._store.lineage.id
        env = attempt_settings.environment(
            session.environment, name, lineage, resume_point, dumps, command=session.command
        )
        if session.code is not None:
            env |= session.code.environment({**session.environment, **env})
        evicted = tuple(sorted(session.allocation.evicted))
        channel.launch(messages.LaunchSrun(name, tuple(argv), {**env, **extra}, (), evicted))
        session.agents.watch_attempt(name)

    async def _relaunch(self, relaunch: Relaunch) -> None:
        """Start srun again in the allocation."""
        session, allocation, log = self._session, self._session.allocation, self._log
        assert session.channel is not None
        allocation.evicted |= relaunch.evict
        nodes, used = allocation.nodes, relaunch.nodes_used
        extra = attempt_settings.fresh_rendezvous(session.environment, self._attempt_name(self._launches + 1), nodes)
        self._launch(session.channel, list(relaunch.argv), extra)
        log.set_time("running")
        number = f"{used} of " if used and used < len(nodes) else ""
        text = f"srun was started anew for the training step; it may use {number}{','.join(nodes)}"
        session.folder.log_event("relaunched", text, incident=log.incident.id, evicted=sorted(allocation.evicted))
        log.save()
        await session.job.write_claim(incident=log.incident.id, times=dict(log.incident.times))
