"""The nodes of the job's allocation, as far as the supervisor may use them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Allocation:
    """The allocation of one run of the job.

    Attributes:
        all_nodes: As Slurm gave them.
        evicted: Nodes that no attempt may use any more.
        silent_nodes: Usable nodes whose agent does not answer.
    """

    all_nodes: tuple[str, ...]
    evicted: set[str] = field(default_factory=set)
    silent_nodes: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> list[str]:
        """Nodes that were not evicted."""
        return self.without(())

    def without(self, more: Iterable[str]) -> list[str]:
        """Nodes that were not evicted, without these."""
        left_out = self.evicted.union(more)
        return [n for n in self.all_nodes if n not in left_out]
