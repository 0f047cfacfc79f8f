"""From suspicion to verdict: capture, judge, capture again. Harmless at every point; acts on nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from slurm_robust.config import SuperviseConfig
from slurm_robust.localize import ras
from slurm_robust.localize.evidence import Capture, CapturedProcess, Evidence, RankCapture, RankExit
from slurm_robust.localize.evidence_folder import LAYOUT_FILE
from slurm_robust.localize.failure import failure_of
from slurm_robust.localize.judge import judge
from slurm_robust.localize.ras import RasView
from slurm_robust.localize.recorder.dump import RankDump
from slurm_robust.localize.stacks import archive
from slurm_robust.localize.stacks.merge import render_tree
from slurm_robust.model import Conclusion, Failure, Signal, SignalKind, Verdict
from slurm_robust.supervise.incident.incident_folder import Folder
from slurm_robust.supervise.incident.incident_page import Record
from slurm_robust.supervise.watch.fleet import Fleet, RankInfo

SILENT_AGENT_S = 7.0
"""Three heartbeats: an agent not heard of for longer does not answer."""
_POLL_S = 0.02
_KEPT_CAPTURES = 8
_SLOW = "its node was too slow to send its stack"
_GRACE_S = 1.0
"""For agents slower than the capture's own limit, before they count as missing."""


@dataclass
class Scene:
    """What the supervisor knows beside the captures."""

    nodes: tuple[str, ...]
    layout: Mapping[str, int] = field(default_factory=dict)
    layout_order: str = ""
    exits: dict[int, RankExit] = field(default_factory=dict)
    vanished: dict[int, RankExit] = field(default_factory=dict)
    """Ranks that are gone while srun runs and says nothing of them: finished, or dead."""
    signals: list[Signal] = field(default_factory=list)


class Investigator:
    """Captures of one incident, and what they amount to."""

    def __init__(
        self,
        config: SuperviseConfig,
        tell: Callable[..., None],
        fleet: Fleet,
        *,
        folder: Folder,
        record: Record,
        scene: Scene,
    ) -> None:
        self._config = config
        self._tell = tell
        self._fleet = fleet
        self._folder = folder
        self._record = record
        self._scene = scene
        self.captures: list[Capture] = []
        self.recorder: dict[int, RankDump] = {}
        """Flight-recorder dumps of this incident, the latest of each rank."""
        self.rounds = 0
        self._complained = self._layout_kept = False
        self._began_s = self._kept_s = time.time()
        self.failure: Failure | None = None
        """What to compare with earlier failures; known once judged."""

    async def capture(self, *, keep: bool = True) -> Capture:
        """Take all stacks now, and wait for every node the capture's time, and as long again where it is alive.

        A node whose agent does not answer is missing. One that is heard of and sends no stacks is only slow: its ranks
        are unseen, and nothing is held against it. With `keep`, what came is written down and told, and NCCL and its
        ranks' flight recorders are asked, too: a quiet look at a healthy job must cost it nothing.
        """
        self.rounds += 1
        number = self.rounds
        key = int(time.monotonic() * 1000)
        began = time.monotonic()
        want = {r.node for r in self._fleet.alive}  # a node without a rank has nothing to say
        archives = self._fleet.expect(key)
        # One answer of NCCL's tells of the whole job; another node is asked each time, since one may be the ill one.
        asked = sorted(want)[number % len(want)] if want and keep else ""
        timeout_s = self._config.capture_timeout_s
        self._tell("capture", id=key, round=number, timeout_s=timeout_s, ras=asked, recorder=keep)
        deadline = began + 2 * self._config.capture_timeout_s + _GRACE_S
        # A node whose agent is silent anyway must not hold the others up.
        while not want - set(archives) <= self._silent() and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
        self._fleet.archives.pop(key, None)
        missing = tuple(sorted((want - set(archives)) & self._silent()))
        slow = sorted(want - set(archives) - set(missing))
        taken, recorder, problems = merge(archives, missing, [r for r in self._fleet.alive if r.node in slow])
        self.recorder.update(recorder)
        self._complain(problems)
        self.captures = [*self.captures, taken][-_KEPT_CAPTURES:]
        self._record.stamp("captured")
        self._record.tree = render_tree(taken)
        if not keep:
            return taken
        self._folder.write_archives(self._record.id, number, archives)
        where = f"; no answer from {','.join(missing)}" if missing else ""
        where += f"; {','.join(slow)} alive, but too slow to send stacks" if slow else ""
        self._folder.tell(
            "captured",
            f"stacks of {len(taken.ranks)} ranks taken in {time.monotonic() - began:.2f} s (round {number}){where}",
            round=number,
            missing=missing,
            incident=self._record.id,
        )
        return taken

    def _keep_layout(self, layout: Mapping[str, int], order: str) -> None:
        """In the incident's folder, in the words of `--layout`: for `srobust localize` later on."""
        if layout and self._record.id and not self._layout_kept:
            self._layout_kept = True
            parts = [*(f"{kind}={size}" for kind, size in layout.items()), *([f"order={order}"] if order else [])]
            self._folder.write(f"{self._record.id}/{LAYOUT_FILE}", ",".join(parts) + "\n")

    def _views(self) -> tuple[RasView, ...]:
        """What NCCL said since this incident began; kept in its folder, for another look."""
        views = []
        for heard_s, body in self._fleet.ras:
            if heard_s < self._began_s:
                continue
            try:
                # Different nodes answer, whose clocks may differ: ours counts.
                views.append(replace(ras.read(body), at_s=heard_s))
            except ras.RasError as error:
                self._complain([str(error)])
                continue
            if heard_s > self._kept_s and self._record.id:
                self._kept_s = heard_s
                self._folder.write(f"{self._record.id}/ras-{self.rounds}.json", body)
        return tuple(views)

    def take_over(self, earlier: Investigator) -> None:
        """Go on with what an earlier look at the same thing has found."""
        self.captures, self.recorder = list(earlier.captures), dict(earlier.recorder)
        self._began_s = earlier._began_s

    def _complain(self, problems: Sequence[str]) -> None:
        """Say once why the first of the dumps that cannot be used cannot."""
        if problems and not self._complained:
            self._complained = True
            others = f" (and {len(problems) - 1} more like it)" if len(problems) > 1 else ""
            self._folder.tell("note", f"{problems[0]}{others}", incident=self._record.id)

    def _silent(self) -> set[str]:
        return set(self._fleet.silent_nodes(self._scene.nodes, time.time(), SILENT_AGENT_S))

    def judge(self) -> Verdict:
        """What the evidence so far amounts to."""
        fleet = self._fleet
        layout, order = self._scene.layout, self._scene.layout_order
        layout = layout or next((r.layout for r in fleet.ranks.values() if r.layout), {})
        self._keep_layout(layout, order)
        missing = self.captures[-1].missing_nodes if self.captures else ()
        silent = [
            Signal(SignalKind.AGENT_SILENT, time.time(), "watch", f"the agent of {n} does not answer", node=n)
            for n in missing
        ]
        evidence = Evidence(
            world_size=max(fleet.world, len(fleet.ranks)),
            rank_nodes=fleet.rank_nodes,
            captures=tuple(self.captures),
            # What srun says of ended ranks is surer than what is merely gone, which may be a second ahead of it.
            exits=tuple((self._scene.exits or self._scene.vanished).values()),
            node_signals=(*self._scene.signals, *silent),
            layout=layout,
            layout_order=order,
            recorder=self.recorder,
        )
        try:
            evidence = replace(evidence, ras=self._views())
            verdict = judge(evidence)
            self.failure = failure_of(evidence, verdict)
        except Exception as error:  # noqa: BLE001 (a fault of ours in weighing evidence must not end the supervision)
            self._folder.tell("note", f"the evidence could not be weighed: {error!r}; please report this")
            verdict = Verdict(Conclusion.UNDETERMINED, f"the evidence could not be weighed ({type(error).__name__})")
        self._record.judged(verdict)
        return verdict


class Merged(NamedTuple):
    """One moment, put together from all nodes.

    Attributes:
        recorder: Flight-recorder dumps, by rank.
        problems: A sentence for each dump that could not be used.
    """

    capture: Capture
    recorder: dict[int, RankDump]
    problems: tuple[str, ...]


def merge(archives: Mapping[str, bytes], missing: Iterable[str], unseen: Iterable[RankInfo] = ()) -> Merged:
    """One capture out of the nodes' archives; an archive that cannot be read counts as missing.

    Args:
        archives: By node.
        missing: Nodes that do not answer.
        unseen: Ranks that are there, and whose stacks did not come.
    """
    ranks = [RankCapture(r.rank, r.node, (CapturedProcess(r.pid, 0, error=_SLOW),), None) for r in unseen]
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
    taken = Capture(time.time(), tuple(sorted(ranks, key=lambda r: r.rank)), tuple(sorted(lost)))
    return Merged(taken, recorder, tuple(problems))
