"""A supervisor whose nodes report faults: what it does at once, after a checkpoint, and not at all."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from faulty_training import NODES, Training
from supervised import World

from slurm_robust.config.site import Config
from slurm_robust.core.model import Mode, Signal
from slurm_robust.localize.evidence import RankExit
from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.policy.job.node_faults import FaultMemory, FaultMove
from slurm_robust.slurm.client import Node
from slurm_robust.supervise.agent.messages import NodeFindings
from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.launch.attempt_settings import ResumePoint
from slurm_robust.supervise.lineage import lineage_store
from slurm_robust.supervise.lineage.lineage import Lineage, Tally
from slurm_robust.supervise.reported.node_reports import NodeFaults
from slurm_robust.supervise.supervisor import Supervisor
from slurm_robust.supervise.watch import newest_checkpoint
from slurm_robust.supervise.watch.drain_watch import EVERY_S


def test_a_lost_gpu_moves_the_job_at_once(tmp_path: Path) -> None:
    """No silence is waited for; the stacks are taken, and the incident tells of the fault."""
    job = Training(tmp_path, {20: lambda: job.finds("n2", gpus=(3,), code=79)})
    job.saves(10)
    assert job.ends() == 0
    world = job.world
    assert job.excluded == ["n2"]
    assert max(job.computed[: job.computed.index(11, 1)]) <= 22
    (incident,) = world.incidents
    (signal,) = incident["signals"]
    assert (signal["kind"], signal["source"], signal["node"]) == ("node_fault", "kmsg", "n2")
    assert signal["evidence"] == {"kind": "xid", "urgency": "now", "gpus": [3], "port": "", "code": 79}
    assert incident["verdict"]["suspects"][0]["ranks"] == [1]
    assert incident["times"]["decided"] - incident["times"]["fault"] <= 2.0
    assert world.kinds.count("captured") == 1
    assert "XID 79" in world.text("node-fault")
    assert "XID 79" in world.text("decided")


def test_one_link_flap_is_a_line_in_the_story_and_two_move_the_job(tmp_path: Path) -> None:
    """The second one within five minutes."""
    flap = {"urgency": "if_repeated", "kind": "link", "port": "mlx5_0/1", "text": "link down"}
    once = Training(tmp_path / "once", {20: lambda: once.finds("n2", **flap)})
    assert once.ends() == 0
    assert once.excluded == []
    assert once.world.incidents == []
    assert once.world.kinds.count("node-fault") == 1
    job = Training(tmp_path, {15: lambda: job.finds("n2", **flap), 25: lambda: job.finds("n2", **flap)})
    assert job.ends() == 0
    assert job.excluded == ["n2"]
    assert max(job.computed) == 40
    assert "link down, for the second time in 12 s" in job.world.text("decided")


def test_a_fault_that_can_wait_moves_the_job_after_its_checkpoint(tmp_path: Path) -> None:
    """Between the checkpoint and the end of the next step: not one step is computed twice."""
    job = Training(tmp_path, {12: lambda: job.finds("n2", "at_next_checkpoint"), 25: lambda: job.saves(25)})
    job.saves(10)
    assert job.ends() == 0
    assert job.excluded == ["n2"]
    assert job.computed == list(range(11, 41))
    assert "the checkpoint of step 25 is verified" in job.world.text("suspected")
    assert "captured" not in job.world.kinds


def test_a_fault_that_can_wait_moves_the_job_at_the_limit(tmp_path: Path) -> None:
    """No newer checkpoint comes."""
    job = Training(tmp_path, {12: lambda: job.finds("n2", "at_next_checkpoint")}, supervise={"fault_wait_s": 10.0})
    job.saves(10)
    assert job.ends() == 0
    assert job.excluded == ["n2"]
    assert max(job.computed[: job.computed.index(11, 1)]) in (19, 20)
    assert "supervise.fault_wait_s" in job.world.text("suspected")


def test_a_storage_that_hangs_does_not_stop_the_supervision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the checkpoints are looked at, another fault of the node is urgent."""
    gate = threading.Event()

    def hangs(directory: str) -> ResumePoint:
        gate.wait(30)
        return ResumePoint()

    monkeypatch.setattr(newest_checkpoint, "look_up", hangs)
    script = {12: lambda: job.finds("n2", "at_next_checkpoint"), 14: lambda: job.finds("n2"), 39: gate.set}
    job = Training(tmp_path, script)
    job.saves(10)
    assert job.ends() == 0
    assert job.excluded == ["n2"]


def test_a_job_whose_checkpoints_are_not_known_stays(tmp_path: Path) -> None:
    """Leaving the node could lose all that it has computed."""
    fault = {12: lambda: job.finds("n2", "at_next_checkpoint")}
    job = Training(tmp_path, fault, checkpoint_dir="", supervise={"fault_wait_s": 5.0})
    assert job.ends() == 0
    assert job.excluded == []
    assert "no checkpoint folder is known" in job.world.text("note")


def test_a_rank_that_ends_meanwhile_is_not_started_again_on_the_node(tmp_path: Path) -> None:
    """The fault could wait; the program's crash does not, and nothing else says that the node is at fault."""

    def crashes() -> None:
        assert supervisor is not None
        job.world.loses(1)
        supervisor.attempt.exits[1] = RankExit(1, "n2", job.world.clock.at_s, None, 11)
        job.world.agents.processes = lambda _: []

    job = Training(tmp_path, {12: lambda: job.finds("n2", "at_next_checkpoint"), 15: crashes})
    job.saves(10)
    supervisor = Supervisor(job.world.session)
    assert asyncio.run(supervisor.run()) == 0
    assert job.excluded == ["n2"]


def test_a_fault_during_a_silence_ends_the_waiting(tmp_path: Path) -> None:
    """The stacks explain nothing, and the limit is far: the node's own report is enough."""
    job = Training(tmp_path, {})
    job.stalls_at, job.at_stall = 20, lambda: job.finds("n2", gpus=(3,), code=79)
    job.saves(10)
    assert job.ends() == 0
    assert job.excluded == ["n2"]
    (incident,) = job.world.incidents
    assert incident["plan"]["reason"].startswith("node n2 reports XID 79")
    (told,) = [line for line in job.world.story if line["kind"] == "node-fault"]
    (decided,) = [line for line in job.world.story if line["kind"] == "decided"]
    assert decided["at_s"] - told["at_s"] <= 3.0


@pytest.mark.parametrize(("ago_s", "left"), [(0.0, ["n2"]), (400.0, [])])
def test_a_fault_explains_the_hang_that_follows_it_within_minutes(
    tmp_path: Path, ago_s: float, left: list[str]
) -> None:
    """A link was down, once; then nothing moves, and the stacks explain nothing."""
    flap = {"kind": "link", "port": "mlx5_0/1", "text": "link down"}
    script = {18: lambda: job.finds("n2", "if_repeated", ago_s, **flap)}
    job = Training(tmp_path, script, supervise={"action_limit_s": 120.0})
    job.stalls_at = 20
    job.saves(10)
    assert job.ends() == 0
    assert job.launches == 2
    assert job.excluded == left


def test_a_job_that_can_go_nowhere_is_told_once_and_watched_on(tmp_path: Path) -> None:
    """No spare and no requeue; the suspicion that was announced is withdrawn."""
    job = Training(tmp_path, {12: lambda: job.finds("n3"), 14: lambda: job.finds("n2")}, job={"requeueable": False})
    assert job.ends() == 0
    assert job.excluded == []
    assert job.world.kinds.count("decided") == 1
    assert "the job may not be requeued" in job.world.text("decided")
    assert job.world.job.claim.suspected_at_s == 0.0


def test_a_job_without_requeue_and_spare_stays(tmp_path: Path) -> None:
    """The spare was evicted before."""
    job = Training(tmp_path, {12: lambda: job.finds("n2")}, job={"requeueable": False})
    assert job.world.channel is not None
    job.world.channel.evicted = ("n3",)
    assert job.ends() == 0
    assert job.excluded == []
    assert "may not be requeued" in job.world.text("decided")
    assert job.world.kinds.count("decided") == 1


def test_a_training_that_ends_well_in_that_second_is_not_brought_back(tmp_path: Path) -> None:
    """The last step is done when its node reports the fault."""
    job = Training(tmp_path, {40: lambda: job.finds("n2")})
    assert job.ends() == 0
    assert job.excluded == []
    assert job.world.kinds[-1] == "finished"


def test_faults_on_all_nodes_are_one_alert(tmp_path: Path) -> None:
    """Though they come one after the other, and again."""
    script = {
        12: lambda: [job.finds("n1"), job.finds("n2")],
        14: lambda: [job.finds("n1"), job.finds("n2")],
        80: lambda: None,
    }
    job = Training(tmp_path, script)  # type: ignore[arg-type]
    assert job.ends() == 0
    assert job.excluded == []
    (incident,) = job.world.incidents
    assert incident["plan"]["road"] == "alert_only"
    assert "more than half" in incident["plan"]["reason"]
    assert job.world.kinds.count("decided") == 1


def test_mild_faults_of_one_node_after_the_other_do_not_move_the_job_for_ever(tmp_path: Path) -> None:
    """It left two nodes for the same in an earlier run: one alert, and the first node of another sort is left."""
    seen: list[FaultMove] = []

    def remembered() -> None:
        (lineage,) = lineage_store.load(job.world.session.folder).runs.values()
        seen.extend(lineage.faults.moves)

    script = {
        12: lambda: job.finds("n1", "at_next_checkpoint"),
        14: lambda: job.finds("n1", "at_next_checkpoint"),
        18: lambda: job.finds("n2", "at_next_checkpoint", kind="filesystem", text="/data does not answer"),
        25: lambda: job.saves(25),
        39: remembered,
    }
    job = Training(tmp_path, script)
    job.saves(10)
    now_s = job.world.clock.at_s
    moves = tuple(FaultMove(now_s - ago_s, f"x{ago_s}", "at_next_checkpoint", "xid") for ago_s in (900, 300))
    memory = replace(job.world.job.claim, lineage="abc")
    job.world.job.claim = memory
    lineage_store.save(job.world.session.folder, "run 1", Lineage("abc", faults=FaultMemory(moves)), Tally())
    assert job.ends() == 0
    assert job.excluded == ["n2"]
    alert, moved = (line["text"] for line in job.world.story if line["kind"] == "decided")
    assert "alert only" in alert
    assert "x300, x900 had the same within a day" in alert
    assert "spare in allocation" in moved
    assert [(move.node, move.kind) for move in seen] == [("x900", "xid"), ("x300", "xid"), ("n2", "filesystem")]


def test_a_storm_that_comes_in_slowly_is_seen_when_its_second_node_reports(tmp_path: Path) -> None:
    """The first node of two was left half a minute ago: its successor's fault is the same event, and one alert."""
    script = {
        12: lambda: job.finds("n2", kind="disks", source="poll", text="disk sda is gone"),
        30: lambda: job.finds("n3", kind="disks", source="poll", text="disk sda is gone"),
        31: lambda: job.finds("n3", kind="disks", source="poll", text="disk sda is gone"),
    }
    job = Training(tmp_path, script)
    job.saves(10)
    assert job.ends() == 0
    assert job.excluded == ["n2"]
    assert job.launches == 2
    assert job.world.kinds.count("decided") == 2
    assert "alert only: 2 nodes report faults at once (n2, n3), more than half" in job.world.text("decided")


def test_observe_mode_has_words_only_and_goes_on_watching(tmp_path: Path) -> None:
    """A rank's end after it is judged as ever: the fault has not made the supervisor deaf."""
    job = Training(tmp_path, {12: lambda: job.finds("n2")}, config=Config(mode=Mode.OBSERVE))
    assert job.ends() == 0
    assert job.excluded == []
    assert job.world.kinds.count("observed") == 1
    assert "would take spare in allocation" in job.world.text("observed")
    assert job.world.job.claim.suspected_at_s == 0.0


def test_an_application_xid_is_told_and_nothing_else(tmp_path: Path) -> None:
    """Once, though the same comes again and again; and a ring that is not believed is a note."""

    def again() -> None:
        job.finds("n2", "note", text="XID 31", code=31)
        job.finds("n2", "note", text="XID 31", code=31)
        job.world.session.receive(NodeFindings("n1", (), "/run/x: owned by user 7"))

    job = Training(tmp_path, {12: again})
    assert job.ends() == 0
    assert job.excluded == []
    assert job.world.incidents == []
    assert job.world.kinds.count("node-fault") == 1
    assert "nothing is done" in job.world.text("node-fault")
    notes = [line["text"] for line in job.world.story if line["kind"] == "note"]
    assert "the findings of n1 are not believed: /run/x: owned by user 7" in notes


def test_a_finding_that_is_sent_again_is_taken_once(tmp_path: Path) -> None:
    """By an agent that was started anew. A lower number is news: of a GPU, held back, or of a service begun anew."""
    world = World(tmp_path, command="python train.py")
    first = NodeFinding(5, world.clock.at_s, "link", "link", "if_repeated", "link down", (), "mlx5_0/1")
    signals: list[Signal] = []
    for finding in (first, first, first._replace(seq=1, at_s=first.at_s + 19), first):
        world.session.receive(NodeFindings("n1", (finding,)))
        world.clock.at_s += 10
        world.session.node_faults.pass_on(signals, world.session.folder)
    assert [s.at_s for s in signals] == [first.at_s, first.at_s + 19]
    assert world.session.node_faults.faulty(NODES, NODES).leave_now


def test_a_spare_with_a_lost_gpu_moves_nothing_and_replaces_nobody(tmp_path: Path) -> None:
    """Its finding is known at once, though no rank runs there: n2 then fails, and only a requeue is left."""

    def spare() -> None:
        finding = NodeFinding(1, job.world.clock.at_s, "kmsg", "xid", "now", "XID 79", (0,), "", 79)
        job.world.session.receive(NodeFindings("n3", (finding,), unused=True))

    job = Training(tmp_path, {12: spare, 30: lambda: job.finds("n2")}, job={"requeueable": False})
    job.saves(10)
    assert job.ends() == 0
    assert job.excluded == []
    assert "node n3 reports XID 79; no rank has run there" in job.world.text("note")
    assert "n2 reports" in job.world.text("decided")
    assert "it needs 2 nodes, and 1 would be left" in job.world.text("decided")


@pytest.mark.parametrize(
    ("reason", "gpus", "left"),
    [("srobust: gpu_lost on GPU 3", 8, ["n2"]), ("srobust: gpu_lost on GPU 3", 4, []), ("fans, bob", 8, [])],
)
def test_a_drain_of_a_running_job_is_seen_in_about_a_minute(
    tmp_path: Path, reason: str, gpus: int, left: list[str]
) -> None:
    """Nothing is wrong with the training. Slurm is asked once a minute."""
    calls: list[float] = []

    def drain() -> None:
        nodes, now_s = job.world.slurm.state.nodes, job.world.clock.at_s
        nodes["n2"] = replace(
            nodes["n2"], flags=frozenset({"DRAIN"}), reason=reason, reason_at_s=int(now_s), gres="gpu:8"
        )

    job = Training(tmp_path, {70: drain, 150: lambda: job.saves(150)}, last_step=200)
    job.world.slurm.gpus[job.world.job.job_id] = dict.fromkeys(NODES, frozenset(range(gpus)))
    job.saves(10)
    slurm, asked = job.world.slurm, job.world.slurm.nodes

    def nodes() -> list[Node]:
        calls.append(job.world.clock.at_s)
        return asked()

    slurm.nodes = nodes  # type: ignore[method-assign]
    drained_at_s = job.world.clock.at_s + 60
    assert job.ends() == 0
    assert job.excluded == left
    (told,) = [line for line in job.world.story if line["kind"] == "node-fault"]
    assert told["at_s"] - drained_at_s <= EVERY_S + 15
    if not left:
        assert {round(later - earlier) for earlier, later in pairwise(calls)} <= {60, 61}


def test_the_first_agents_look_back_to_the_start_of_the_job(tmp_path: Path) -> None:
    """A fault between the two is news; one that is older was there before the job."""
    job = Training(tmp_path, {})
    world = job.world
    world.clock.at_s = world.job.attempt.start_at_s + 90
    assert job.ends() == 0
    assert world.agents.looked_back_s == 90


def test_a_storm_stays_one_when_its_nodes_go_elsewhere() -> None:
    """Once it is announced, no node is left for it: neither when another one has left, nor for a fault that follows."""
    faults, signals = NodeFaults(), []
    for node in "ABC":
        faults.take(NodeFindings(node, (NodeFinding(1, 1000.0, "poll", "disks", "now", "disk sda is gone"),)), 1000.0)
    faults.pass_on(signals, Silent())
    storm = faults.faulty("ABCD", "ABCD").storm
    assert len(storm) == 3
    faults.announced(storm)
    assert faults.faulty("BCDS", "BCDS").all == {}
    assert not faults.unhandled("B")
    for at_s, left in ((1030.0, []), (1100.0, ["D"])):
        faults.take(
            NodeFindings("D", (NodeFinding(int(at_s), at_s, "poll", "disks", "now", "disk sda is gone"),)), at_s
        )
        faults.pass_on(signals, Silent())
        assert list(faults.faulty("BCDS", "BCDS").leave_now) == left, "one that comes late belongs to the event"


def test_a_check_that_is_well_again_takes_back_what_could_wait() -> None:
    """A mount that hung for half a minute is no reason to move twenty minutes later; an XID takes nothing back."""
    faults, signals = NodeFaults(), []
    found = (
        NodeFinding(1, 1000.0, "poll", "filesystem", "at_next_checkpoint", "/data does not answer"),
        NodeFinding(2, 1000.0, "kmsg", "xid", "at_next_checkpoint", "XID 63", code=63),
        NodeFinding(3, 1030.0, "poll", "filesystem", "note", "filesystem is well again"),
        NodeFinding(4, 1030.0, "kmsg", "xid", "note", "XID 31", code=31),
    )
    faults.take(NodeFindings("A", found), 1040.0)
    faults.pass_on(signals, Silent())
    assert [signal.evidence["code"] for signal in faults.of("AB")] == [63]


class Silent(IncidentFolder):
    """A story that nobody reads."""

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"), quiet=True)

    def log_event(self, *_: Any, **__: Any) -> None:
        """Nothing is written."""
