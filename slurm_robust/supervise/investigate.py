"""From suspicion to verdict: capture, judge, capture again. Harmless at every point; acts on nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from slurm_robust.config import SuperviseConfig
from slurm_robust.localize import archive
from slurm_robust.localize.evidence import Capture, Evidence, RankCapture, RankExit
from slurm_robust.localize.failure import failure_of
from slurm_robust.localize.fold import render_tree
from slurm_robust.localize.judge import judge
from slurm_robust.model import Conclusion, Signal, SignalKind, Verdict
from slurm_robust.policy.decide import Failure
from slurm_robust.supervise.fleet import Fleet
from slurm_robust.supervise.folder import Folder
from slurm_robust.supervise.incident import Record

SILENT_AGENT_S = 7.0
"""Three heartbeats: an agent not heard of for longer does not answer."""
_POLL_S = 0.02
_KEPT_CAPTURES = 8
_GRACE_S = 1.0
"""For agents slower than the capture's own limit, before they count as missing."""


@dataclass
class Scene:
    """What the supervisor knows beside the captures."""

    nodes: tuple[str, ...]
    layout: Mapping[str, int] = field(default_factory=dict)
    exits: dict[int, RankExit] = field(default_factory=dict)
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
        self.rounds = 0
        self.failure: Failure | None = None
        """What to compare with earlier failures; known once judged."""

    async def capture(self, *, keep: bool = True) -> Capture:
        """Take all stacks now, and wait for every node at most the capture's time.

        With `keep`, what came is written into the incident's folder and told.
        """
        self.rounds += 1
        number = self.rounds
        key = int(time.monotonic() * 1000)
        began = time.monotonic()
        want = {r.node for r in self._fleet.alive}  # a node without a rank has nothing to say
        self._tell("capture", id=key, round=number, timeout_s=self._config.capture_timeout_s)
        deadline = began + self._config.capture_timeout_s + _GRACE_S
        while time.monotonic() < deadline:
            waiting_for = want - set(self._fleet.archives.get(key, {}))
            # A node whose agent is silent anyway must not hold the others up.
            if waiting_for <= set(self._fleet.silent_nodes(self._scene.nodes, time.time(), SILENT_AGENT_S)):
                break
            await asyncio.sleep(_POLL_S)
        archives = self._fleet.archives.pop(key, {})
        missing = tuple(sorted(want - set(archives)))
        taken = merge(archives, missing)
        self.captures = [*self.captures, taken][-_KEPT_CAPTURES:]
        self._record.stamp("captured")
        self._record.tree = render_tree(taken)
        if not keep:
            return taken
        self._folder.write_archives(self._record.id, number, archives)
        where = f"; no answer from {','.join(missing)}" if missing else ""
        self._folder.tell(
            "captured",
            f"stacks of {len(taken.ranks)} ranks taken in {time.monotonic() - began:.2f} s (round {number}){where}",
            round=number,
            missing=missing,
            incident=self._record.id,
        )
        return taken

    def judge(self) -> Verdict:
        """What the evidence so far amounts to."""
        fleet = self._fleet
        layout = self._scene.layout or next((r.layout for r in fleet.ranks.values() if r.layout), {})
        missing = self.captures[-1].missing_nodes if self.captures else ()
        silent = [
            Signal(SignalKind.AGENT_SILENT, time.time(), "watch", f"the agent of {n} does not answer", node=n)
            for n in missing
        ]
        evidence = Evidence(
            world_size=max(fleet.world, len(fleet.ranks)),
            rank_nodes=fleet.rank_nodes,
            captures=tuple(self.captures),
            exits=tuple(self._scene.exits.values()),
            node_signals=(*self._scene.signals, *silent),
            layout=layout,
        )
        try:
            verdict = judge(evidence)
            self.failure = failure_of(evidence, verdict)
        except Exception as error:  # noqa: BLE001 (a fault of ours in weighing evidence must not end the supervision)
            self._folder.tell("note", f"the evidence could not be weighed: {error!r}; please report this")
            verdict = Verdict(Conclusion.UNDETERMINED, f"the evidence could not be weighed ({type(error).__name__})")
        self._record.judged(verdict)
        return verdict


def merge(archives: Mapping[str, bytes], missing: Iterable[str]) -> Capture:
    """One capture out of the nodes' archives; an archive that cannot be read counts as missing."""
    ranks: list[RankCapture] = []
    lost = list(missing)
    for node, body in archives.items():
        try:
            ranks.extend(archive.decode(body).ranks)
        except archive.ArchiveError:
            lost.append(node)
    return Capture(time.time(), tuple(sorted(ranks, key=lambda r: r.rank)), tuple(sorted(lost)))
