"""When a warm step is started, kept, given up and released; agents and launcher are fakes."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from supervised import World

from slurm_robust.supervise.agent import messages, packing
from slurm_robust.supervise.agent.warm_messages import AskWarm, WarmAnswer
from slurm_robust.supervise.launch.messages import AdoptWarm, EndWarm, StartWarm, WarmEnded
from slurm_robust.supervise.warm import fitness
from slurm_robust.supervise.warm.warm_restarts import WarmRestarts

GIB = 1 << 30
ARGV = ("srun", "--kill-on-bad-exit=0", "--wait=0", "-n2", "--overlap", "--nodes=2", "--", sys.executable, "train.py")


@dataclass
class Nodes:
    """Two nodes with a warm process each: what their agents answer."""

    ready: set[str] = field(default_factory=lambda: {"n1", "n2"})
    goes: set[str] = field(default_factory=lambda: {"n1", "n2"})
    refused: str = ""
    offender: str = ""
    available_bytes: int = 64 * GIB
    record: str = "m\tjson\t/x"
    orders: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def answer(self, node: str, ask: AskWarm) -> WarmAnswer:
        """Of one node's agent."""
        if node == "n1" and ask.order not in ("memory", "state"):
            self.orders.append((ask.order, json.loads(packing.unpack(ask.packed)) if ask.packed else {}))
        if ask.order == "record":
            return WarmAnswer(node, ask.request_id, packed=packing.pack(self.record) if self.record else "")
        number = int(node[1:]) - 1
        there = node in (self.goes if ask.order == "go" else self.ready)
        tasks = (number,) if there and not self.refused else ()
        return WarmAnswer(
            node, ask.request_id, tasks, self.refused, self.offender, 900, 3.5, 200 << 20, self.available_bytes
        )


class Story:
    """A supervised job of two ranks, and its warm restarts."""

    def __init__(self, folder: Path, **supervise: Any) -> None:
        self.world = World(
            folder, command=f"-n2 {sys.executable} train.py", supervise={"warm_restarts": True, **supervise}
        )
        self.nodes = Nodes()
        self.world.agents.warm = self.nodes.answer
        self.names = 1
        self.took_s = 0.0
        """How long the last launch has asked and waited."""
        self.env = {"SROBUST_RESUME_STEP": "-1", "GONE": "1"}
        self.warm = WarmRestarts(self.world.session, lambda _: self.env, self._name)
        self.attempt = self.world.attempt()
        assert self.world.channel is not None
        self.channel = self.world.channel

    def _name(self) -> str:
        self.names += 1
        return f"5.0.1.{self.names}"

    def trains(self) -> None:
        """The attempt stands."""
        self.world.finds_ranks()
        self.world.steps(3)
        self.warm.observe(self.attempt, calm=True)
        self.world.clock.at_s += 5.0

    def tick(self, count: int = 1, *, each_s: float = 5.0) -> None:
        """Time passes."""

        async def run() -> None:
            for _ in range(count):
                self.world.clock.at_s += each_s
                await self.warm.tick()
                await self.settle()

        asyncio.run(run())

    async def settle(self) -> None:
        """Whatever was begun in the background comes to its end."""
        if self.warm._endings:
            await asyncio.wait(self.warm._endings)

    def start(self) -> None:
        """A warm step is there, and ready."""
        self.trains()
        self.tick(2)

    def launch(self, argv: tuple[str, ...] = ARGV, **env: str) -> str:
        """The next attempt: the name of the warm one, or `cold`."""

        async def run() -> str:
            began_s = self.world.clock.at_s
            name = await self.warm.take(argv)
            went = bool(name) and await self.warm.release(env)
            self.took_s = self.world.clock.at_s - began_s
            await self.settle()
            return name if went else "cold"

        return asyncio.run(run())

    @property
    def texts(self) -> list[str]:
        """The lines about warm steps."""
        return [line["text"] for line in self.world.story if line["kind"] == "warm"]


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    """With a standard input that is /dev/null."""
    monkeypatch.setattr(fitness, "reads_input", lambda _: False)
    return Story(tmp_path)


def test_a_warm_step_is_started_once_the_attempt_stands(story: Story) -> None:
    """Not before, and not while an incident is open."""
    story.world.finds_ranks()
    story.tick()
    story.trains()
    story.warm.observe(story.attempt, calm=False)
    story.tick()
    assert story.channel.warm_orders == []
    story.warm.observe(story.attempt, calm=True)
    story.tick()
    (order,) = story.channel.warm_orders
    assert isinstance(order, StartWarm)
    assert (order.attempt, order.argv) == ("5.0.1.2", ARGV)
    assert order.env["SROBUST_WARM"] == "wait"
    assert order.env["PYTHONPATH"] == fitness.HOOK


def test_ranks_that_do_not_load_our_file_have_no_warm_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task prolog sets PYTHONPATH anew, say: warm processes would run the program beside the one that trains."""
    monkeypatch.setattr(fitness, "reads_input", lambda _: False)
    story = Story(tmp_path, warm_modules=("json",))
    story.nodes.record = ""
    story.start()
    assert story.channel.warm_orders == []
    assert story.texts == ["the warm step was given up: what the ranks have imported could not be learnt"]


def test_the_story_says_when_its_processes_wait_and_what_they_take(story: Story) -> None:
    """Measured by the processes themselves."""
    story.nodes.ready = set()
    story.trains()
    story.tick(2)
    assert ("prepare", {"record": "m\tjson\t/x", "extra": [], "left_out": []}) in story.nodes.orders
    assert story.texts == []
    story.nodes.ready = {"n1", "n2"}
    story.tick()
    assert story.texts == [
        "2 warm processes have imported 900 modules in 3.5 s and wait; they take 200 MiB on n2, and no GPU"
    ]


def test_the_next_attempt_starts_from_it(story: Story) -> None:
    """With the variables that have changed since, and without those that are gone; then another one is started."""
    story.start()
    assert story.launch(SROBUST_RESUME_STEP="40") == "5.0.1.2"
    assert story.nodes.orders[-1] == ("go", {"set": {"SROBUST_RESUME_STEP": "40"}, "unset": ["GONE"]})
    assert story.channel.warm_orders[-1] == AdoptWarm("5.0.1.2")
    assert "3.5 s for starting Python and importing 900 modules were spent beforehand" in story.texts[-1]
    story.attempt = story.world.attempt("5.0.1.2")
    story.start()
    assert [o.attempt for o in story.channel.warm_orders if isinstance(o, StartWarm)] == ["5.0.1.2", "5.0.1.3"]


@pytest.mark.parametrize("what", ["shape", "silent", "agent", "does not go", "imports"])
def test_what_does_not_fit_starts_cold_within_a_second(story: Story, what: str) -> None:
    """The warm processes are killed by their agents, and the story says why."""
    story.trains()
    story.tick()
    if what != "imports":
        story.tick()
    story.nodes.ready -= {"n2"} if what == "silent" else set()
    story.nodes.goes -= {"n2"} if what == "does not go" else set()
    story.world.agents.silent = ["n2"] if what == "agent" else []
    assert story.launch(("srun", "--exclude=n2") if what == "shape" else ARGV) == "cold"
    assert story.channel.warm_orders[-1] == EndWarm("5.0.1.2")
    assert messages.CleanUp(0, "5.0.1.2", 2.0) in story.world.agents.sent
    assert story.took_s == pytest.approx(1.0 if what == "agent" else 0.0, abs=0.02)
    silent = "1 of 2 warm processes do not answer"
    why = {"shape": "another shape", "silent": silent, "agent": silent, "imports": "still importing"}
    assert why.get(what, "1 of 2 warm processes did not start") in story.texts[-1]


def test_without_a_warm_step_an_attempt_starts_cold(story: Story) -> None:
    """Soon after the last one."""
    assert story.launch() == "cold"
    assert story.texts == ["the attempt starts cold: there was no warm step yet"]


def test_memory_is_left_to_the_training(story: Story) -> None:
    """No warm step where it does not fit, and its end where memory runs short later."""
    story.nodes.available_bytes = GIB
    story.trains()
    story.tick(3)
    assert story.channel.warm_orders == []
    assert story.texts == [
        "no warm step: 1 processes of 600 MiB need more than half of the 1024 MiB that are free on n1"
    ]
    story.nodes.available_bytes = 8 * GIB
    story.tick(3, each_s=121.0)
    assert isinstance(story.channel.warm_orders[-1], StartWarm)
    story.nodes.available_bytes = 100 << 20
    story.tick()
    assert story.texts[-1] == "the warm step was ended: 100 MiB are left on n1, and it holds 200 MiB there"
    assert story.launch() == "cold"


def test_a_module_that_does_harm_is_left_out_the_next_time(story: Story) -> None:
    """And what is no module's doing ends warm restarts."""
    story.nodes.refused, story.nodes.offender = "lib opens /dev/nvidia0 when it is imported", "lib"
    story.start()
    assert story.texts == ["warm processes leave out lib: lib opens /dev/nvidia0 when it is imported"]
    story.nodes.refused = story.nodes.offender = ""
    story.nodes.ready = set()
    story.tick(2)
    assert story.nodes.orders[-1][1]["left_out"] == ["lib"]
    story.nodes.refused = "this Python has a usercustomize"
    story.tick()
    assert story.texts[-1] == "no warm restarts: this Python has a usercustomize"
    assert story.warm.recording({}) == {}


def test_a_warm_step_that_ends_is_started_again_and_given_up_in_the_end(story: Story) -> None:
    """Its srun says why; a process that was killed shows it by not answering."""
    story.start()
    story.channel.warm_ended = WarmEnded("5.0.1.2", 1, "srun: error: no")
    story.tick()
    assert story.texts[-1] == "the warm step was given up: its srun ended (exit 1): srun: error: no"
    story.tick(2, each_s=121.0)
    story.nodes.ready = {"n1"}
    story.tick(3)
    assert story.texts[-1] == "the warm step was given up: 1 of its 2 processes have ended, or do not answer"
    story.tick(1, each_s=121.0)
    story.tick(2, each_s=301.0)
    assert "no more warm restarts" not in story.texts[-1]
    story.tick(1, each_s=121.0)
    story.tick(2, each_s=301.0)
    assert story.texts[-1].startswith("no more warm restarts: its processes were not ready after 300 s")


def test_nothing_is_recorded_where_no_warm_restart_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not asked for, somebody reads the input, no step of our own."""
    monkeypatch.setattr(fitness, "reads_input", lambda _: True)
    asked = Story(tmp_path / "a")
    assert "standard input" in asked.warm.refused
    asked.warm.start()
    assert asked.texts == [f"no warm restarts: {asked.warm.refused}"]
    not_asked = Story(tmp_path / "b", warm_restarts=False)
    not_asked.warm.start()
    assert (not_asked.warm.recording({}), not_asked.texts, not_asked.launch()) == ({}, [], "cold")
    attached = WarmRestarts(World(tmp_path / "c", supervise={"warm_restarts": True}).session, lambda _: {}, str)
    assert "no step of its own" in attached.refused


def test_a_python_that_does_not_load_our_file_has_no_warm_processes(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its warm processes would run the program beside the one that trains."""
    monkeypatch.setattr(fitness, "HOOK", str(tmp_path / "elsewhere"))
    story.trains()
    story.tick()
    assert story.channel.warm_orders == []
    assert story.texts == [f"no warm restarts: {sys.executable} does not load sitecustomize.py from PYTHONPATH"]
