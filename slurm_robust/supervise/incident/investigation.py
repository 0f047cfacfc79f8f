"""Investigates a suspicion up to a verdict: capture, judge, capture again. It does not act on anything."""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from slurm_robust.core.model import Conclusion, Failure, Signal, SignalKind, Verdict
from slurm_robust.localize import circumstances, ras
from slurm_robust.localize.apart import Apart, standing_apart
from slurm_robust.localize.circumstances import CIRCUMSTANCES_FILE, SavedRound, saved_round, unseen_rank
from slurm_robust.localize.dead_mounts import dead_mounts
from slurm_robust.localize.evidence import Capture, Evidence
from slurm_robust.localize.evidence_folder import LAYOUT_FILE
from slurm_robust.localize.failure import failure_of, words_of
from slurm_robust.localize.judge import judge
from slurm_robust.localize.ranks import name
from slurm_robust.localize.ras import RasView
from slurm_robust.localize.recorder.dump import DumpPairs, RankDump
from slurm_robust.localize.stacks import archive
from slurm_robust.localize.stacks.merge import render_tree
from slurm_robust.supervise.agent import messages
from slurm_robust.supervise.agent.mount_messages import CheckMounts
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.incident.waited_for import ended_ranks, unreported_ranks, waited_for_in_s
from slurm_robust.supervise.reported.fleet import RankInfo
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import SILENT_AGENT_S, AttemptState

_POLL_S = 0.02
_KEPT_CAPTURES = 8
_FAULT_BEFORE_S = 300.0
"""A node's fault explains a silence or an end that begins at most this long after it."""
_GRACE_S = 1.0
"""Extra time for agents that are slower than the capture's own limit, before they count as missing."""


class Investigation:
    """The captures of one suspicion, and the verdict on them.

    The log's current incident is given times, stacks and verdict; quiet captures have no incident and no log.

    Attributes:
        captures: The last captures.
        recorder: Flight-recorder dumps, the last two of each rank.
        rounds: How many captures were taken.
        failure: The failure to compare with earlier failures; known after judging.
        apart: The nodes whose ranks stand apart from the others; known after judging.
    """

    def __init__(self, session: Session, attempt: AttemptState, log: IncidentLog | None = None) -> None:
        self._session = session
        self._attempt = attempt
        self._log = log
        self._id = log.incident.id if log is not None else ""
        self.captures: list[Capture] = []
        self.recorder = DumpPairs()
        self.rounds = 0
        self.failure: Failure | None = None
        self.apart = Apart()
        self._saved_rounds: list[SavedRound] = []
        self._unsaved: dict[int, Mapping[str, bytes]] = {}
        self._ras_at_s: dict[str, float] = {}
        self._asked_mounts: set[str] = set()
        self._first_key = sys.maxsize
        """Key of the first capture: earlier answers about mounts have nothing to do with this incident."""
        self._problem_reported = self._layout_kept = False
        self._began_s = self._kept_s = session.clock.now_s()
        self._stopped_s = session.clock.stopped_s

    async def capture(self, *, keep: bool = True, within_s: float = math.inf) -> Capture:
        """Take all stacks now. Wait for every node for the capture's time, and as long again while its agent answers.

        A node whose agent is silent is missing. A node whose agent answers without sending stacks is only slow: its
        ranks are unseen, but the node is not suspected. With `keep`, the capture is saved and reported, and NCCL and
        the ranks' flight recorders are asked, too. Without `keep` they are not, since a quiet capture of a healthy job
        must not cost the job anything. Stacks are waited for at most `within_s`.
        """
        self.rounds += 1
        self._leave_out_stop()
        number, fleet, clock = self.rounds, self._attempt.fleet, self._session.clock
        began = clock.monotonic_s()
        key = int(began * 1000)
        self._first_key = min(self._first_key, key)
        want = {r.node for r in fleet.alive}  # a node without a rank has no stacks
        archives = fleet.expect(key)
        # One answer of NCCL's covers the whole job. Another node is asked each time, since one may be the faulty one.
        ras_node = sorted(want)[number % len(want)] if want and keep else ""
        timeout_s = min(self._session.settings.capture_timeout_s, within_s)
        self._session.agents.send(messages.TakeCapture(key, number, timeout_s, ras_node, with_recorder=keep))
        deadline = began + min(2 * timeout_s + _GRACE_S, within_s)
        # A node whose agent is silent anyway must not delay the others.
        while not want - set(archives) <= self._silent() and clock.monotonic_s() < deadline:
            await clock.sleep(_POLL_S)
        fleet.archives.pop(key, None)
        missing = tuple(sorted((want - set(archives)) & self._silent()))
        slow = sorted(want - set(archives) - set(missing))
        merged = merge(archives, missing, clock.now_s(), [r for r in fleet.alive if r.node in slow])
        self.recorder.add(merged.recorder)
        self._report_problem(merged.problems)
        taken = merged.capture
        self.captures = [*self.captures, taken][-_KEPT_CAPTURES:]
        self._saved_rounds = [*self._saved_rounds, saved_round(number, taken, slow)][-_KEPT_CAPTURES:]
        self._ask_about_mounts(key)
        if self._log is not None:
            self._log.set_captured(render_tree(taken))
        if keep:
            self._session.folder.write_archives(f"{self._id}/stacks-{number}/", archives)
            self._report(taken, clock.monotonic_s() - began, slow)
        else:
            # An incident may follow later, and then these stacks belong into its folder.
            self._unsaved[number] = {node: zlib.compress(body, 1) for node, body in archives.items()}
            self._unsaved.pop(number - _KEPT_CAPTURES, None)
        return taken

    def _leave_out_stop(self) -> None:
        """Do not count the time for which we were stopped, with the job, as time in which the ranks did not move."""
        stopped_s = self._session.clock.stopped_s - self._stopped_s
        if stopped_s > 0:
            self._stopped_s += stopped_s
            self.captures = [replace(taken, at_s=taken.at_s + stopped_s) for taken in self.captures]

    def _ask_about_mounts(self, key: int) -> None:
        """Ask all nodes about the mounts that a node with a rank in D state has reported as silent."""
        views = self._attempt.fleet.mount_views(self._first_key)
        silent = {mount for view in views for mount in view.silent} - self._asked_mounts
        if silent:
            self._asked_mounts |= silent
            self._session.agents.send(CheckMounts(key + 1, tuple(sorted(silent))))

    def _report(self, taken: Capture, took_s: float, slow: Sequence[str]) -> None:
        missing = taken.missing_nodes
        where = f"; no answer from {','.join(missing)}" if missing else ""
        where += f"; {','.join(slow)} alive, but too slow to send stacks" if slow else ""
        self._session.folder.log_event(
            "captured",
            f"stacks of {len(taken.ranks)} ranks taken in {took_s:.2f} s (round {self.rounds}){where}",
            round=self.rounds,
            missing=missing,
            incident=self._id,
        )

    def _keep_layout(self, layout: Mapping[str, int], order: str) -> None:
        """Write the layout into the incident's folder, in the form of `--layout`: `srobust localize` reads it."""
        if layout and self._id and not self._layout_kept:
            self._layout_kept = True
            parts = [*(f"{kind}={size}" for kind, size in layout.items()), *([f"order={order}"] if order else [])]
            self._session.folder.write(f"{self._id}/{LAYOUT_FILE}", ",".join(parts) + "\n")

    def _views(self) -> tuple[RasView, ...]:
        """Return NCCL's answers since this incident began; they are kept in its folder."""
        views = []
        for heard_s, body in self._attempt.fleet.ras:
            if heard_s < self._began_s:
                continue
            try:
                # Different nodes answer, whose clocks may differ: our clock counts.
                views.append(replace(ras.read(body), at_s=heard_s))
            except ras.RasError as error:
                self._report_problem([str(error)])
                continue
            if heard_s > self._kept_s and self._id:
                self._kept_s = heard_s
                self._session.folder.write(f"{self._id}/ras-{self.rounds}.json", body)
                self._ras_at_s[f"ras-{self.rounds}.json"] = heard_s
        return tuple(views)

    def take_over(self, earlier: Investigation) -> None:
        """Go on with the captures of an earlier investigation of the same suspicion."""
        self.captures, self.recorder = list(earlier.captures), earlier.recorder.copy()
        self._began_s, self.rounds = earlier._began_s, earlier.rounds
        self._first_key, self._stopped_s = earlier._first_key, earlier._stopped_s
        self._saved_rounds = list(earlier._saved_rounds)
        for number, archives in earlier._unsaved.items():
            unpacked = {node: zlib.decompress(body) for node, body in archives.items()}
            self._session.folder.write_archives(f"{self._id}/stacks-{number}/", unpacked)

    def _report_problem(self, problems: Sequence[str]) -> None:
        """Report once why a dump cannot be used: the first such dump."""
        if problems and not self._problem_reported:
            self._problem_reported = True
            others = f" (and {len(problems) - 1} more like it)" if len(problems) > 1 else ""
            self._session.folder.log_event("note", f"{problems[0]}{others}", incident=self._id)

    def _silent(self) -> set[str]:
        attempt, now_s = self._attempt, self._session.clock.now_s()
        return set(attempt.fleet.silent_nodes(attempt.sources.nodes, now_s, SILENT_AGENT_S))

    def ended_are_waited_for_in_s(self) -> float:
        """Return in how many seconds the ended ranks count as waited for: 0 if they do, infinity if none shows it."""
        session = self._session
        return waited_for_in_s(self._attempt, self.captures, session.clock.now_s(), session.settings)

    @property
    def progress_since(self) -> bool:
        """Whether the job has shown progress since the last capture."""
        attempt = self._attempt
        return attempt.reports and bool(self.captures) and attempt.last_sign_s > self.captures[-1].at_s

    def _in_doubt(self, verdict: Verdict, evidence: Evidence) -> Verdict:
        """Return the verdict; not yet corroborated if ranks run without waiting for the ended ones, or more may end."""
        attempt, ended = self._attempt, ended_ranks(self._attempt)
        if attempt.awaits_reports:
            missing = (*verdict.missing, "srun's report of how the other ranks ended")
            return replace(verdict, corroborated=False, missing=missing)
        if not ended or not attempt.fleet.alive or not (attempt.exits or _rests_on(verdict, ended, evidence)):
            return verdict
        if not self.ended_are_waited_for_in_s():
            return verdict
        missing = (*verdict.missing, f"captures that show the others waiting for {name(ended)}")
        return replace(verdict, corroborated=False, missing=missing)

    def judge(self) -> Verdict:
        """Return the verdict on the evidence so far."""
        evidence = self.evidence
        cause: Mapping[str, str] = {}
        try:
            evidence = replace(evidence, ras=self._views())
            verdict = self._in_doubt(judge(evidence), evidence)
            self.apart = standing_apart(evidence, verdict)
            self.failure, cause = failure_of(evidence, verdict), words_of(evidence, verdict)
        except Exception as error:  # noqa: BLE001 (a fault of ours in weighing evidence must not end the supervision)
            self._session.folder.log_event("note", f"the evidence could not be weighed: {error!r}; please report this")
            verdict = Verdict(Conclusion.UNDETERMINED, f"the evidence could not be weighed ({type(error).__name__})")
        if self._log is not None:
            self._log.set_verdict(verdict)
            self._log.update(cause=cause)
        self._keep_circumstances(evidence)
        return verdict

    def conclude(self, verdict: Verdict, failure: Failure | None) -> None:
        """Keep a verdict that needs no weighing: nodes have reported a fault of their own."""
        self.failure = failure
        if self._log is not None:
            self._log.set_verdict(verdict)
        self._keep_circumstances(self.evidence)

    @property
    def evidence(self) -> Evidence:
        """The evidence that is known now, without NCCL's answers."""
        attempt, fleet, now_s = self._attempt, self._attempt.fleet, self._session.clock.now_s()
        layout, order = attempt.layout, attempt.sources.layout_order
        self._keep_layout(layout, order)
        missing = self.captures[-1].missing_nodes if self.captures else ()
        silent = [
            Signal(SignalKind.AGENT_SILENT, now_s, "watch", f"the agent of {n} does not answer", node=n)
            for n in missing
        ]
        since_s = attempt.last_sign_s - _FAULT_BEFORE_S
        told = [s for s in attempt.signals if s.kind is not SignalKind.NODE_FAULT or s.at_s >= since_s]
        # srun ends by itself once it knows the end of every task: a rank without a report has then finished.
        over = self._session.srun_exit_code is not None or self._session.attached_srun_gone
        unreported = {} if over else unreported_ranks(attempt)
        return Evidence(
            world_size=max(fleet.world, len(fleet.ranks)),
            rank_nodes=fleet.rank_nodes,
            captures=tuple(self.captures),
            # srun's report of ended ranks is surer than their absence, which may show a second earlier.
            exits=(*ended_ranks(attempt).values(), *unreported.values()),
            node_signals=(*told, *silent),
            layout=layout,
            layout_order=order,
            recorder=self.recorder.latest,
            recorder_before=self.recorder.before,
            dead_mounts=dead_mounts(fleet.mount_views(self._first_key)),
            raised=attempt.raised,
            rules=self._session.rules,
            last_sign_s=attempt.last_sign_s if attempt.reports else 0.0,
        )

    def _keep_circumstances(self, evidence: Evidence) -> None:
        if self._id:
            body = circumstances.encode(evidence, self._saved_rounds, self._ras_at_s)
            self._session.folder.write(f"{self._id}/{CIRCUMSTANCES_FILE}", body)


def _rests_on(verdict: Verdict, vanished: Collection[int], evidence: Evidence) -> bool:
    """Return whether the verdict names ranks because they have vanished, while their node is still there."""
    gone = {s.node for s in evidence.node_signals if s.kind in (SignalKind.NODE_DOWN, SignalKind.AGENT_SILENT)}
    named = {rank for suspect in verdict.suspects for rank in suspect.ranks if suspect.node not in gone}
    return bool(named & set(vanished))


class MergedArchives(NamedTuple):
    """One capture of all nodes, flight-recorder dumps by rank, and a sentence for each dump that could not be used."""

    capture: Capture
    recorder: dict[int, RankDump]
    problems: tuple[str, ...]


def merge(
    archives: Mapping[str, bytes], missing: Iterable[str], at_s: float, unseen: Iterable[RankInfo] = ()
) -> MergedArchives:
    """Merge the nodes' archives into one capture; an archive that cannot be read counts as missing.

    `unseen` has living ranks whose stacks did not come; `missing` has nodes that do not answer.
    """
    ranks = [unseen_rank(r.rank, r.node, r.pid) for r in unseen]
    lost = list(missing)
    recorder: dict[int, RankDump] = {}
    problems: list[str] = []
    for node, body in archives.items():
        try:
            found = archive.decode(body)
        except archive.ArchiveError:
            lost.append(node)
            continue
        ranks.extend(found.ranks)
        recorder.update(found.recorder)
        problems.extend(found.problems)
    taken = Capture(at_s, tuple(sorted(ranks, key=lambda r: r.rank)), tuple(sorted(lost)))
    return MergedArchives(taken, recorder, tuple(problems))
