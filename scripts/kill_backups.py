"""A round of scripts/kill_saves.py in which somebody is killed while copies travel to the nodes that keep them."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import kill_point
import msgspec
from kill_cases import HERE
from kill_round import Round
from kill_rules import Left, newest, promised
from kill_training import go_on, train_backed_up

from slurm_robust import checkpoint
from slurm_robust.checkpoint.saving.shared.file_writer import RankPart


class BackupRound(Round):
    """Two nodes or more whose agents keep each other's copies; one may be lost, and another takes its place."""

    living: frozenset[int] = frozenset()
    """Persisters that the next training can ask."""

    def story(self) -> str:
        """Train, kill, look what is left, go on."""
        for node in self.nodes:
            self.agent(node)
        codes = self.ranks(train_backed_up, self.nodes)
        struck = kill_point.struck(self.folder)
        if not struck:
            return f"nobody was killed: {codes}: {self.said()}"
        if self.case.victim in ("persister", "agent") and any(codes):
            return f"ranks ended with {codes}: {self.said()}"
        self._lose(struck)
        self.nobody_dies()
        left = self._left()
        least = promised(self.case, self.noted("began"), self._kept_by_the_dead())
        if newest(left, self.case.ranks) < least:
            return f"step {least} is promised, what is left is {left}: {self.said()}"
        return self._flushed(left) if self.case.flushed else self._went_on(left)

    # -- what is left ------------------------------------------------------------------------------------------

    def _lose(self, struck: str) -> None:
        """Have the node die that the case says; a persister whose agent died ends by itself, and is waited for."""
        case = self.case
        if case.victim == "node":
            self.lost.add(struck)
        if case.lost:
            node = struck if case.lost == HERE else self.nodes[(self.nodes.index(struck) + 1) % case.nodes]
            self.lost.add(node)
            kill_point.kill(self.folder, "*", node)

        def settled() -> bool:
            persisters = [self._parent(pid) for pid in kill_point.pids(self.folder, "persister")]
            return self.lost.isdisjoint(self.agents.values()) and all(
                not one or one in self.agents for one in persisters
            )

        self.reaped(settled)
        self.living = frozenset(pid for pid in kill_point.pids(self.folder, "persister") if self._parent(pid))

    @staticmethod
    def _parent(pid: int) -> int:
        """0 for a process that lives no more."""
        try:
            state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        except FileNotFoundError:
            return 0
        return 0 if state == "Z" else int(parent)

    def _left(self) -> Left:
        """What the next training can find, by the names that were left, and the disk; what gets to it later is none."""
        parts = self._parts()  # before they go with the seal
        sealed = max(checkpoint.latest(self.folder / "ckpt").step, 0)
        return Left(self._own("copied"), self._kept(self._names()), parts, sealed)

    def _own(self, noted: str) -> dict[int, frozenset[int]]:
        """Rank → steps that its buffers hold, or held."""
        case = self.case
        return {
            rank: frozenset(int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"{noted}-{rank}-*"))
            for rank in range(case.ranks)
            if self.nodes[rank * case.nodes // case.ranks] not in self.lost
        }

    def _names(self) -> list[str]:
        return [path.name for path in self.folder.glob("kept-*")]

    def _kept(self, names: Collection[str]) -> dict[int, frozenset[int]]:
        found: dict[int, frozenset[int]] = {}
        for _, _, pid, rank, step in (name.split("-") for name in names):
            if int(pid) in self.living:
                found[int(rank)] = found.get(int(rank), frozenset()) | {int(step)}
        return found

    def _kept_by_the_dead(self) -> int:
        """The last step that a persister kept which was killed, on a node that lives."""
        told = [name.split("-") for name in self._names()]
        dead = [int(step) for _, node, pid, _, step in told if int(pid) not in self.living and node not in self.lost]
        return max(dead, default=0)

    def _parts(self) -> dict[int, frozenset[int]]:
        found: dict[int, frozenset[int]] = {}
        for path in (self.folder / "ckpt").glob("step-*/part-*.json"):
            try:
                part = msgspec.json.decode(path.read_bytes(), type=RankPart)
            except FileNotFoundError:
                continue
            assert part.note is not None
            found[part.rank] = found.get(part.rank, frozenset()) | {part.note.step}
        return found

    def _later(self, left: Left, names: Collection[str]) -> Left:
        """The same with what was under way: a copy without its mark when its rank was killed, or on its way here."""
        return left._replace(own=self._own("whole"), kept=self._kept(names))

    # -- what comes of it --------------------------------------------------------------------------------------

    def _flushed(self, left: Left) -> str:
        """The agents end, and the next training, elsewhere, has what they wrote."""
        if why := self.over():
            return why
        step = max(checkpoint.latest(self.folder / "ckpt", deep=True).step, 0)
        low, high = newest(left, self.case.ranks), newest(self._later(left, self._names()), self.case.ranks)
        if not low <= step <= high:
            return f"step {step} is there after the flush, not one of {low} to {high}: {left}: {self.said()}"
        (self.folder / "over").unlink()
        self.lost, self.living = {*self.nodes}, frozenset()
        return self._went_on(Left({}, {}, {}, step))

    def _went_on(self, left: Left) -> str:
        """The next training, with another node in each lost one's place."""
        case = self.case
        nodes = [f"n{number + 10}" if node in self.lost else node for number, node in enumerate(self.nodes)]
        for node in nodes:
            if node not in self.agents.values():
                self.agent(node)
        codes = self.ranks(go_on, nodes[::-1] if case.swapped else nodes)
        if any(codes):
            return f"the next training ended with {codes}, what was left is {left}: {self.said()}"
        loaded = [json.loads(path.read_text()) for path in sorted(self.folder.glob("loaded-*"))]
        step, self.source, _, names = loaded[0]
        low, high = newest(left, case.ranks), newest(self._later(left, names), case.ranks)
        if not low <= step <= high or any((one[0], one[2]) != (step, True) for one in loaded):
            return f"loaded were {[one[:3] for one in loaded]}, allowed is {low} to {high}: {left}: {self.said()}"
        found = checkpoint.latest(self.folder / "ckpt", deep=True)
        return "" if found.step == step + 1 else f"step {found.step} is there in the end, {step + 1} was sealed"
