"""The ladder in one supervisor: a hang that nothing explains, its tests, and what follows. The clock is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_tests import FakeTests, node_fails
from supervised import World

from slurm_robust import checkpoint
from slurm_robust.config.site import Config
from slurm_robust.core.model import TestName
from slurm_robust.supervise import supervisor
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.lineage import lineage_store
from slurm_robust.supervise.supervisor import Supervisor

NODES = ("n1", "n2", "n3", "n4", "n5")
USED = NODES[:4]
ALL = ("in-node", "pairs", "alignment")


def waiting(rank: int) -> list[dict[str, Any]]:
    """The processes of a rank: it waits like all others, and no stack shows for whom."""
    return [{"pid": 100 + rank, "state": "S", "cpu_s": 1.0, "io_bytes": 1}]


class Hangs:
    """A training on n1 to n4 with the spare n5: some launches hang at step 20.

    Attributes:
        hang: How many launches do.
        loss: Step → the loss that ranks report.
        loss_of: The same for single ranks.
        loss_every: After how many steps they report another one.
        launches: How many were seen.
        saved: The step of the newest checkpoint.
    """

    def __init__(self, folder: Path, tests: FakeTests, *, hang: int = 1, **changes: Any) -> None:
        self.tests, self.hang, self.launches, self.step, self.saved = tests, hang, 0, 0, 10
        self.loss: Callable[[int], float | str | None] = lambda step: None
        self.loss_of: dict[int, Callable[[int], float | str | None]] = {}
        self.loss_every = 1
        checkpoint.save(folder / "ck", 10, {"x": 1})
        changes = {"ladder": {"tests": ALL}, "supervise": {"action_limit_s": 60.0}, **changes}
        changes = {"command": "-N4 python train.py", **changes}
        self.world = World(folder / "story", nodes=NODES, checkpoint_dir=str(folder / "ck"), **changes)
        self.world.agents.processes = waiting
        self.world.clock.on_sleep = self.goes_on

    def goes_on(self) -> None:
        """What the ranks do while the supervisor sleeps."""
        world, channel = self.world, self.world.channel
        assert channel is not None
        if len(channel.launched) > self.launches and channel.ended is None:
            self.launches = len(channel.launched)
            argv = channel.launched[-1][0]
            left = next((word.partition("=")[2].split(",") for word in argv if word.startswith("--exclude")), [])
            world.finds_ranks(4, nodes=tuple(node for node in NODES if node not in left))
            self.step = 0 if self.launches == 1 else 10
        if channel.ended is not None or not self.launches:
            return
        if self.step >= 20 and self.launches <= self.hang:
            return
        if self.step >= 40:
            channel.ended = 0
            return
        self.step += 1
        for rank in range(4):
            loss, given = self.loss_of.get(rank, self.loss)(self.step), self.step - self.step % self.loss_every
            entry = [rank, self.step, "train", 0.0, self.step + 1, loss, None, None, given + 1]
            world.session.receive(from_agent({"t": "p", "n": world.session.fleet.ranks[rank].node, "r": [entry]}))

    def ends(self) -> int:
        """A whole run."""
        return asyncio.run(Supervisor(self.world.session, self.tests).run())

    @property
    def excluded(self) -> list[str]:
        """What each launch after the first leaves out."""
        assert self.world.channel is not None
        found = []
        for argv, _, _ in self.world.channel.launched[1:]:
            found.append(next((word.partition("=")[2] for word in argv if word.startswith("--exclude")), ""))
        return found

    @property
    def tested(self) -> list[tuple[str, ...]]:
        """The tests of each run."""
        return [tuple(test.value for test in tests) for _, tests, _ in self.tests.started]


def test_a_node_that_fails_a_test_is_left_out_of_the_next_attempt(tmp_path: Path) -> None:
    """All wait and nothing names a node: the attempt is ended, n3 fails the pairs, training resumes without it."""
    job = Hangs(tmp_path, FakeTests((node_fails("n3", "wrong numbers in all_gather"),)))
    assert job.ends() == 0
    world = job.world
    assert job.tested == [("in-node", "pairs")]
    assert job.tests.started[0][0].nodes == USED
    assert job.excluded == ["n3"]
    assert world.channel is not None
    assert world.channel.orders == ["kill", "exit 0"], "the attempt is ended once"
    (incident,) = world.incidents
    times = incident["times"]
    assert times["decided"] <= times["stopped"] <= times["tests_started"] <= times["tests_done"] <= times["running"]
    assert incident["verdict"]["conclusion"] == "culprit"
    (suspect,) = incident["verdict"]["suspects"]
    assert (suspect["node"], suspect["ranks"]) == ("n3", [2])
    assert [s["kind"] for s in incident["signals"]] == ["silence", "test_failed"]
    assert incident["plan"]["evict"] == ["n3"]
    assert "wrong numbers in all_gather" in "".join(incident["notes"])
    kinds = [kind for kind in world.kinds if kind in ("decided", "testing", "tested", "relaunched", "resumed")]
    assert kinds == ["decided", "testing", "testing", "tested", "decided", "relaunched", "resumed"]
    assert world.text("tested").startswith("in-node and pairs on 4 nodes in ")


def test_a_failed_node_that_the_command_names_is_left_by_a_requeue(tmp_path: Path) -> None:
    """The same command could not run without it."""
    job = Hangs(tmp_path, FakeTests((node_fails("n3", "wrong"),)), command="-N4 -w n1,n2,n3,n4 python train.py")
    assert job.ends() == 75
    assert job.excluded == []
    assert "the command or the environment names n3" in job.world.text("decided")
    assert job.world.job.claim.evict == ("n3",)


def test_a_second_run_that_begins_during_the_tests_does_not_cost_the_training(tmp_path: Path) -> None:
    """Two runs of a job only observe; this one has ended its attempt already, and begins another."""
    job: Hangs
    job = Hangs(tmp_path, FakeTests(on_run=lambda: setattr(job.world.session, "lock", Shared())))
    assert job.ends() == 0
    assert job.excluded == [""]


class Shared:
    """A lock that shows another run."""

    shared = accompanied = True


def test_tests_that_pass_are_followed_by_the_same_again(tmp_path: Path) -> None:
    """Nobody is left out. A second hang is replayed; then the job is requeued."""
    job = Hangs(tmp_path, FakeTests(), hang=2)
    assert job.ends() == 75
    assert job.tested == [("in-node", "pairs"), ("replay",)]
    assert job.excluded == [""]
    kept = lineage_store.load(job.world.session.folder)
    rungs = [c.rung.value for lineage in kept.runs.values() for c in lineage.ladder.climbed]
    assert rungs == ["test", "reattempt", "replay", "requeue"]
    assert job.world.kinds.count("verdict") == 2, "tests that find nothing change no verdict"


def test_a_replay_has_its_own_budget_and_names_the_node(tmp_path: Path) -> None:
    """The rung above the same again, where the tests can replay the training; it finds what the pairs did not.

    The tests know the job's layout.
    """
    tests = FakeTests((node_fails("n2", "each group with it fails", TestName.REPLAY),))
    ladder = {"tests": ("pairs",), "budget_s": 30.0}
    job = Hangs(tmp_path, tests, hang=2, replay="./small.sh", ladder=ladder, layout={"ep": 2})
    assert job.ends() == 0
    assert job.tested == [("pairs",), ("replay",)]
    assert [budget_s for _, _, budget_s in tests.started] == [30.0, 600.0]
    assert [settings.layout for settings in tests.settings] == [{"ep": 2}] * 2
    spec = tests.settings[1].replay
    assert spec is not None
    assert (spec.group_nodes, spec.tasks, spec.command) == (2, 1, ("/bin/sh", "-c", "./small.sh"))
    assert job.excluded == ["", "n2"]


def test_a_bug_in_the_tests_does_not_stop_the_recovery(tmp_path: Path) -> None:
    """It is told, nobody is blamed, and the ladder goes on with the same again."""
    job = Hangs(tmp_path, FakeTests(raises=ZeroDivisionError("x")))
    assert job.ends() == 0
    assert job.excluded == [""]
    assert "ZeroDivisionError" in job.world.text("tested")
    assert job.world.incidents[0]["verdict"]["conclusion"] == "undetermined"


def test_tests_that_hang_do_not_stop_the_recovery(tmp_path: Path) -> None:
    """They are ended a while after their budget."""
    tests = FakeTests(hangs=True)
    job = Hangs(tmp_path, tests)
    assert job.ends() == 0
    assert tests.cancelled == 1
    assert "did not end within 165 s" in job.world.text("tested")
    assert job.excluded == [""]


def test_the_rung_is_remembered_before_its_tests_begin(tmp_path: Path) -> None:
    """A supervisor that is killed in them does not begin them again."""
    seen = []
    job: Hangs

    def look() -> None:
        kept = lineage_store.load(job.world.session.folder)
        seen.extend(lineage.ladder for lineage in kept.runs.values())

    job = Hangs(tmp_path, FakeTests(on_run=look))
    assert job.ends() == 0
    (ladder,) = seen
    assert [(c.rung.value, c.found) for c in ladder.climbed] == [("test", "")]
    assert ladder.tested_at_s == (ladder.climbed[0].at_s,)


def test_more_failed_nodes_than_half_are_called_no_culprits(tmp_path: Path) -> None:
    """They share a cause: the page of the incident must not say that three of four nodes are at fault."""
    job = Hangs(tmp_path, FakeTests(tuple(node_fails(node, "no partner answered") for node in ("n1", "n2", "n3"))))
    assert job.ends() == 0
    assert job.excluded == [""]
    (incident,) = job.world.incidents
    assert (incident["verdict"]["conclusion"], incident["verdict"]["suspects"]) == ("undetermined", [])
    assert "n1 fails the test pairs" in "".join(incident["notes"])
    assert job.world.kinds.count("suspect") == 0


def test_the_claim_tells_of_tests_without_the_plan_before_them(tmp_path: Path) -> None:
    """The daemon would write down an incident in which the node of the last one is left once more."""
    claims = []
    job: Hangs
    job = Hangs(tmp_path, FakeTests(on_run=lambda: claims.append(job.world.job.claim)))
    known = job.world.job
    known.claim = replace(
        known.claim, incident="older", road="spare_in_allocation", mode="act", evict=("n5",), suspects=("n4",),
        conclusion="culprit", confidence=0.9,
    )  # fmt: skip
    assert job.ends() == 0
    (told,) = claims
    assert told.incident not in ("", "older")
    assert told.why.startswith("testing 4 nodes: ")
    assert (told.road, told.mode, told.evict, told.suspects) == ("", "", (), ())
    assert (told.conclusion, told.confidence) == ("", 0.0)


def test_the_launchers_end_during_tests_ends_the_supervision(tmp_path: Path) -> None:
    """Nobody is left who would start an attempt: nothing is decided any more."""
    job: Hangs

    def gone() -> None:
        assert job.world.channel is not None
        job.world.channel.gone.set()

    job = Hangs(tmp_path, FakeTests(hangs=True, on_run=gone))
    assert job.ends() == 0
    assert job.world.kinds.count("decided") == 1
    assert job.excluded == []


def test_a_fault_that_a_node_reports_during_the_tests_counts(tmp_path: Path) -> None:
    """The tests passed; n2 has lost a GPU meanwhile."""
    job: Hangs

    def reports() -> None:
        found = [1, job.world.clock.at_s, "kmsg", "xid", "now", "XID 79", [0], "", 79]
        job.world.session.receive(from_agent({"t": "found", "n": "n2", "findings": [found]}))

    job = Hangs(tmp_path, FakeTests(on_run=reports))
    assert job.ends() == 0
    assert job.excluded == ["n2"]


def test_without_time_left_nothing_is_tested(tmp_path: Path) -> None:
    """The job's time limit would end the attempt after them; that is said."""
    job = Hangs(tmp_path, FakeTests(), job={"time_limit_s": 400, "start_at_s": 1_000_000})
    assert job.ends() == 0
    assert job.tested == []
    assert "of the job's time limit are left, they need 420 s" in job.world.text("note")
    assert job.excluded == [""]


def test_an_observing_supervisor_only_says_that_it_would_test(tmp_path: Path) -> None:
    """The attempt is not ended for it."""
    job = Hangs(tmp_path, FakeTests(), config=Config())
    job.world.clock.on_sleep = lambda: job.goes_on() if job.world.clock.at_s < 1_000_400 else job_ends(job)
    assert job.ends() == 0
    assert job.tested == []
    assert "observe mode: would take test: " in job.world.text("observed")


def job_ends(job: Hangs) -> None:
    """Somebody ends the hung job."""
    assert job.world.channel is not None
    job.world.channel.ended = 0


@pytest.mark.parametrize("fails", [True, False], ids=["a node's", "nobody's"])
def test_a_loss_that_stays_nan_has_the_nodes_aligned(tmp_path: Path, *, fails: bool) -> None:
    """The training goes on, and is ended for it: once, after ten reports."""
    tests = FakeTests((node_fails("n4", "other bits", TestName.ALIGNMENT),) if fails else ())
    job = Hangs(tmp_path, tests, hang=0)
    job.loss = lambda step: "nan" if step >= 15 and job.launches == 1 else 2.0
    assert job.ends() == 0
    assert job.tested[0] == ("alignment",)
    assert job.excluded == (["n4"] if fails else [""])
    assert job.world.incidents[0]["signals"][0]["kind"] == "bad_loss"
    assert "not finite in each of the last 10 reports" in job.world.text("suspected")


def test_a_loss_that_stays_nan_is_left_alone_where_nothing_could_change(tmp_path: Path) -> None:
    """No tests, and no checkpoint from before it: it is announced once, and training goes on."""
    job = Hangs(tmp_path, FakeTests(), hang=0, ladder={"tests": ()})
    checkpoint.demote(tmp_path / "ck" / "step-00000010", "by hand")
    job.loss = lambda step: "nan" if step >= 15 else 2.0
    assert job.ends() == 0
    assert job.excluded == []
    assert job.world.kinds.count("suspected") == 1
    assert "alert only: " in job.world.text("decided")


def test_a_loss_that_stays_nan_goes_back_behind_its_spell_as_often_as_it_may(tmp_path: Path) -> None:
    """The checkpoint of step 10 is too young to be known as healthy, and older than the spell: twice, then no more."""
    job = Hangs(tmp_path, FakeTests(), hang=0, ladder={"tests": ()})
    job.loss = lambda step: "nan" if step >= 15 else 2.0
    assert job.ends() == 0
    assert job.excluded == ["", ""]
    assert [event["text"] for event in job.world.story if "back to step 10" in event["text"]]


def test_a_single_nan_of_a_program_that_seldom_reports_its_loss_is_one_report(tmp_path: Path) -> None:
    """Every tenth step gives a loss; one of them is skipped by loss scaling. The training is left alone."""
    job = Hangs(tmp_path, FakeTests(), hang=0)
    job.loss = lambda step: "nan" if 20 <= step < 30 else 2.0
    job.loss_every = 10
    assert job.ends() == 0
    assert (job.tested, job.excluded) == ([], [])
    assert "suspected" not in job.world.kinds


@pytest.mark.parametrize("last_stage", [2.0, "nan"], ids=["a last stage has one", "nobody has one"])
def test_a_rank_that_never_had_a_finite_loss_is_only_announced(tmp_path: Path, last_stage: float | str) -> None:
    """Of a pipeline's ranks only those of the last stage have a loss; the others report NaN from the first step on."""
    job = Hangs(tmp_path, FakeTests(), hang=0)
    job.loss = lambda step: "nan"
    job.loss_of = {3: lambda step: last_stage}
    assert job.ends() == 0
    assert (job.tested, job.excluded) == ([], [])
    assert "suspected" not in job.world.kinds
    assert job.world.kinds.count("loss") == (1 if last_stage == "nan" else 0)


def test_a_last_stage_whose_loss_turns_nan_is_acted_on(tmp_path: Path) -> None:
    """The other stages never had a loss."""
    job = Hangs(tmp_path, FakeTests(), hang=0)
    job.loss = lambda step: "nan"
    job.loss_of = {3: lambda step: "nan" if step >= 15 and job.launches == 1 else 2.0}
    assert job.ends() == 0
    assert job.tested[0] == ("alignment",)


def test_an_observing_supervisor_only_reports_a_lost_loss(tmp_path: Path) -> None:
    """Once; the training goes on to its end."""
    job = Hangs(tmp_path, FakeTests(), hang=0, config=Config())
    job.loss = lambda step: "nan" if step >= 15 else 2.0
    assert job.ends() == 0
    assert (job.tested, job.excluded) == ([], [])
    assert job.world.kinds.count("observed") == 1
    assert job.world.text("finished") == "finished at step 40"


class FakeSlowness:
    """Finds the training slow from a step on, without a node."""

    def __init__(self, job: Hangs, since: int) -> None:
        self._job = job
        self._since = since

    def poll(self) -> None:
        """It needs no time."""

    @property
    def unnamed(self) -> str:
        """Why it is slow."""
        return "6 of 16 ranks are slower than their peers" if self._job.step >= self._since else ""


@pytest.mark.parametrize("wanted", [True, False])
def test_a_slow_training_is_tested_after_its_next_checkpoint_where_the_site_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, wanted: bool
) -> None:
    """It is not ended before, and once in an attempt; n1 is slow in the pairs."""
    tests = FakeTests((node_fails("n1", "0.2 GB/s"),))
    job = Hangs(tmp_path, tests, hang=0, ladder={"tests": ALL, "test_slow": wanted})
    monkeypatch.setattr(supervisor, "Slowness", lambda *_: FakeSlowness(job, 12 if job.launches < 2 else 99))
    ended_at: list[int] = []
    tests.on_run = lambda: ended_at.append(job.step)

    def trains() -> None:
        job.goes_on()
        if job.step == 25 and job.launches == 1 and job.saved < 25:
            job.saved = 25
            checkpoint.save(tmp_path / "ck", 25, {"x": 1})

    job.world.clock.on_sleep = trains
    assert job.ends() == 0
    if not wanted:
        assert job.tested == []
        return
    assert job.tested == [("pairs",)]
    assert job.excluded == ["n1"]
    assert 25 <= ended_at[0] < 40
    assert "the nodes are tested after the next verified checkpoint" in job.world.text("note")
    assert "the checkpoint of step 25 is verified" in job.world.text("suspected")
