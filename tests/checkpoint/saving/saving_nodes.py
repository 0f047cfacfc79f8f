"""Nodes: several persisters on one machine, each as an agent of its own would have it."""

from __future__ import annotations

from slurm_robust.supervise.agent import persist
from slurm_robust.supervise.agent.ranks import Target


class Nodes:
    """The agents' parts of nodes `a`, `b` …, driven by hand."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self._agents: dict[str, persist.Persist] = {}

    def up(self, *names: str) -> None:
        """Have agents on these nodes, that hold nothing yet."""
        for name in names:
            agent = self._agents[name] = persist.Persist(Target(self.job_id, name, "", "", "test"))
            assert agent.listening() >= 0
            agent.start()

    def lose(self, *names: str) -> None:
        """The nodes are gone, and all that they held: nothing more is written, nobody is told."""
        for name in names:
            agent = self._agents.pop(name)
            if agent._process is not None:
                agent._process.kill()
                agent._process.wait()
            agent.end()

    def end(self) -> None:
        """All of them."""
        for agent in self._agents.values():
            agent.end()
        self._agents = {}
