"""A training with nothing wrong, whose nodes report faults to its supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from supervised import World

from slurm_robust import checkpoint
from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.supervise.agent.messages import NodeFindings
from slurm_robust.supervise.supervisor import Supervisor

NODES = ("n1", "n2", "n3")


class Training:
    """A training on n1 and n2 with the spare n3; a step a second, and nothing is wrong with it.

    Attributes:
        script: Step → what happens then.
        starts_s: From the launch to the first step, seconds.
        at_launch: Number of a launch → what happens two seconds before its first step.
    """

    def __init__(
        self, folder: Path, script: dict[int, Callable[[], None]], last_step: int = 40, **changes: Any
    ) -> None:
        more = {"checkpoint_dir": str(folder / "ck"), **changes}
        self.nodes = more.pop("nodes", NODES)
        self.world = World(folder / "story", command="-N2 python train.py", nodes=self.nodes, **more)
        self.script, self.last_step = script, last_step
        self.at_launch: dict[int, Callable[[], None]] = {}
        self.starts_s = 1.0
        self.launches = self.step = self.seq = 0
        self.at_s = 0.0
        self.computed: list[int] = []
        self.stalls_at = 10**6
        self.at_stall: Callable[[], None] | None = None
        """What happens half a minute after training has stalled."""
        self.world.clock.on_sleep = self.goes_on

    def goes_on(self) -> None:
        """What the ranks do while the supervisor sleeps."""
        world, channel = self.world, self.world.channel
        assert channel is not None
        if len(channel.launched) > self.launches and channel.ended is None:
            self.launches = len(channel.launched)
            excluded = [word.partition("=")[2] for word in channel.launched[-1][0] if word.startswith("--exclude")]
            excluded = [name for names in excluded for name in names.split(",")]
            world.finds_ranks(nodes=tuple(n for n in self.nodes if n not in excluded)[:2])
            self.step = max(0, int(channel.launched[-1][1].get("SROBUST_RESUME_STEP", "0")))
            self.at_s = world.clock.at_s + self.starts_s - 1
        if channel.ended is not None or not self.launches or world.clock.at_s < self.at_s + 1:
            if self.launches in self.at_launch and world.clock.at_s >= self.at_s - 1:
                self.at_launch.pop(self.launches)()
            return
        if self.step >= self.stalls_at and self.launches == 1:
            if self.at_stall is not None and world.clock.at_s > self.at_s + 30:
                self.at_stall()
                self.at_stall = None
            return
        if self.step >= self.last_step:
            channel.ended = 0
            return
        self.step, self.at_s = self.step + 1, world.clock.at_s
        self.computed.append(self.step)
        world.steps(self.step)
        happens = self.script.pop(self.step, None)
        if happens is not None:
            happens()

    def finds(self, node: str, urgency: str = "now", ago_s: float = 0.0, **more: Any) -> None:
        """The agent of a node sends a finding of so long ago."""
        self.seq += 1
        made = {"source": "kmsg", "kind": "xid", "text": "XID 79: GPU has fallen off the bus", **more}
        finding = NodeFinding(**made, seq=self.seq, at_s=self.world.clock.at_s - ago_s, urgency=urgency)
        self.world.session.receive(NodeFindings(node, (finding,)))

    def ends(self) -> int:
        """Run the supervisor to the end."""
        return asyncio.run(Supervisor(self.world.session).run())

    def saves(self, step: int) -> None:
        """A checkpoint is written and verified."""
        checkpoint.save(self.world.session.checkpoint_dir, step, {"x": 1})

    @property
    def excluded(self) -> list[str]:
        """Nodes that each launch after the first leaves out."""
        assert self.world.channel is not None
        launched = self.world.channel.launched[1:]
        return [word.partition("=")[2] for argv, _, _ in launched for word in argv if word.startswith("--exclude")]
