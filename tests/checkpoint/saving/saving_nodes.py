"""Nodes: several persisters on one machine, each as an agent of its own would have it."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from slurm_robust.supervise.agent import persisters
from slurm_robust.supervise.agent.ranks import Target

RANKS = """
def on_nodes(rank, names, what, *args):
    names, world = names.split(), dist.get_world_size() if dist.is_initialized() else 1
    os.environ["SLURMD_NODENAME"] = names[rank * len(names) // world]
    os.environ["SLURM_LOCALID"] = str(rank % (world // len(names)))
    return what(rank, *args)

def backed_up(rank, directory, layout, steps, options):
    training = Training(layout)
    digests = []
    saver = Checkpointer(directory, **options)
    for number in range(1, steps + 1):
        training.step(number)
        assert saver.save(number, training.state)
        digests.append(training.digest())
    while not saver._buffers.safe():
        saver._receive(0.02)
    dist.barrier()
    return {"digests": digests, "backups": saver.backups}

def resumed(rank, directory, layout, options):
    training = Training(layout, seed=7)
    saver = Checkpointer(directory, **options)
    step = saver.load_latest(training.state)
    return {"step": step, "digest": training.digest(), "source": saver.resumed.source, "notes": saver.resumed.notes}

def went_on(rank, directory, layout, options):
    training = Training(layout, seed=7)
    saver = Checkpointer(directory, **options)
    step, digest = saver.load_latest(training.state), training.digest()
    training.step(step + 1)
    assert saver.save(step + 1, training.state)
    while not saver._buffers.safe():
        saver._receive(0.02)
    dist.barrier()
    found = {"step": step, "digest": digest, "source": saver.resumed.source, "notes": saver.resumed.notes}
    return {**found, "digests": [training.digest()], "backups": saver.backups}
"""
"""What runs on a rank: it says which node it is on, by its number; then it saves, or loads, or loads and saves on."""
NO_DISK = "/proc/no-such-place"
"""Nothing is ever written there: what comes back comes from memory."""


def train(nodes: str, world: int, layout: str, **options: Any) -> str:
    """A line of a program: a world that saves three steps to memory and to other nodes."""
    return f'told(run({world}, on_nodes, "{nodes}", backed_up, {NO_DISK!r}, "{layout}", 3, {options!r}))\n'


def load(nodes: str, world: int, layout: str, **options: Any) -> str:
    """A line of a program: a world that loads."""
    return f'told(run({world}, on_nodes, "{nodes}", resumed, {NO_DISK!r}, "{layout}", {options!r}))\n'


def go_on(nodes: str, world: int, layout: str, **options: Any) -> str:
    """A line of a program: a world that loads, and saves one step more to memory and to other nodes."""
    return f'told(run({world}, on_nodes, "{nodes}", went_on, {NO_DISK!r}, "{layout}", {options!r}))\n'


class Nodes:
    """The agents' parts of nodes `a`, `b` …, driven by hand."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self._agents: dict[str, persisters.PersisterHost] = {}
        self._replaced = 0

    def up(self, *names: str) -> None:
        """Have agents on these nodes, that hold nothing yet."""
        for name in names:
            agent = self._agents[name] = persisters.PersisterHost(Target(self.job_id, name, "", "", "test"))
            assert agent.listening() >= 0
            agent.start()

    @contextmanager
    def looked_after(self) -> Iterator[None]:
        """Agents do what they do all the time: a persister that dies has a successor when a rank wants one."""
        done = threading.Event()

        def look() -> None:
            while not done.wait(0.02):
                for agent in list(self._agents.values()):
                    fd = agent.listening()
                    if fd >= 0 and select.select([fd], [], [], 0)[0]:
                        agent.start()

        looking = threading.Thread(target=look)
        looking.start()
        try:
            yield
        finally:
            done.set()
            looking.join()

    def replace(self, *names: str) -> list[str]:
        """Lose these nodes; others that hold nothing come in their places: their names."""
        self.lose(*names)
        self._replaced += len(names)
        new = [f"new{number}" for number in range(self._replaced - len(names), self._replaced)]
        self.up(*new)
        return new

    def kill_persister(self, name: str) -> None:
        """Only that process; the agent of the node lives."""
        process = self._agents[name]._process
        assert process is not None
        process.kill()

    def lose(self, *names: str) -> None:
        """The nodes are gone, and all that they held: nothing more is written, nobody is told."""
        for name in names:
            agent = self._agents.pop(name)
            if agent._process is not None:
                agent._process.kill()
                agent._process.wait()
            agent.end()

    def end_in_order(self) -> None:
        """All of them end as agents do; at the same time, as those of a watch step do."""
        agents, self._agents = list(self._agents.values()), {}
        with ThreadPoolExecutor(len(agents) or 1) as threads:
            list(threads.map(lambda agent: agent.end(), agents))

    def end(self) -> None:
        """All of them, whatever they hold."""
        self.lose(*self._agents)
