"""Fault markers of nodes with jobs, on a simulated Slurm: jobs brought back, nodes drained, storms only announced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from daemon_world import Dies
from faults_world import WIDE, XID, Make
from snapshots import published

from slurm_robust.core.model import Mode
from slurm_robust.daemon.controllers.breaker import OPEN_KEY, request_reset
from slurm_robust.marks.fault_marker import FaultMarker, render
from slurm_robust.policy.cluster.recovery_plan import NODE_FAULT
from slurm_robust.slurm.errors import SlurmRefusedError


def test_a_job_that_was_never_wrapped_is_brought_back_and_the_node_drained(fault_world: Make) -> None:
    """Within seconds; the marker is gone, the admin's text is not, and everything stands in the journal."""
    w = fault_world()
    w.slurm.run_job(("n1", "n2"))
    w.run(4)
    w.mark("n2", extra="rack 7")
    w.run(14)
    assert (w.job().state, w.job().restart_count) == ("RUNNING", 1)
    assert "n2" not in w.job().nodes
    assert w.drained() == ["n2"]
    assert w.slurm.state.nodes["n2"].reason == f"srobust: {XID}, as n2 reports"
    assert w.extra("n2") == "rack 7"
    (row,) = w.journal.incidents()
    assert (row.kind, row.outcome, row.recovery and row.recovery.bad) == (NODE_FAULT, "running", ("n2",))
    kinds = [action.kind for action in w.journal.actions(row.key)]
    assert kinds.index("drain") < kinds.index("create_seat") < kinds.index("requeue")
    assert "answer" not in kinds
    assert len(w.alerts("node_fault")) == 1
    w.run(30)
    assert w.slurm.acts.count("requeue 1") == 1, "handled once"
    assert not w.slurm.state.reservations.get("srobust-seat-1")


@pytest.mark.parametrize(
    "change",
    [{"requeueable": False}, {"hetjob_id": 9}, {"job_gpus": frozenset({1})}, {"start_later": True}],
    ids=["not requeueable", "het job", "other GPUs", "started later"],
)
def test_jobs_that_are_not_to_be_moved_run_on_and_the_node_drains(fault_world: Make, change: dict[str, Any]) -> None:
    """Slurm lets running jobs end on a draining node; no new one starts there."""
    w = fault_world()
    gpus, later = change.pop("job_gpus", None), change.pop("start_later", False)
    job = w.slurm.run_job(("n1",), **change)
    if gpus:
        w.slurm.gpus[job.ref.job_id] = {"n1": gpus}
    w.mark("n1", gpus=(0,), age_s=90.0 if later else 0.0)
    w.run(14)
    assert (w.job().state, w.job().restart_count, w.job().nodes) == ("RUNNING", 0, ("n1",))
    assert w.drained() == ["n1"]
    assert w.extra("n1") == ""


def test_without_protection_the_node_is_drained_and_the_job_runs_on(fault_world: Make) -> None:
    """`daemon.protect: supervised` is the default: nobody asked for this job."""
    w = fault_world("breaker: {max_partition_share: 0.5}\n")
    w.slurm.run_job(("n1", "n2"))
    w.mark("n1")
    w.run(14)
    assert (w.job().state, w.job().restart_count) == ("RUNNING", 0)
    assert w.drained() == ["n1"]


def test_the_jobs_gpus_decide_among_two_jobs_of_a_node(fault_world: Make) -> None:
    """The one that has the lost GPU is brought back; the other one runs on."""
    w = fault_world()
    for gpu in (0, 1):
        job = w.slurm.run_job(("n1",))
        w.slurm.gpus[job.ref.job_id] = {"n1": frozenset({gpu})}
    w.mark("n1", gpus=(1,))
    w.run(14)
    assert (w.job(1).restart_count, w.job(2).restart_count) == (0, 1)
    assert w.job(1).nodes == ("n1",)
    assert "n1" not in w.job(2).nodes


def test_a_supervised_job_has_a_minute_to_leave_by_itself(fault_world: Make) -> None:
    """Its claim is what happens; and only where it stays, the daemon acts in its place."""
    w = fault_world()
    w.slurm.run_job(("n1", "n2"))
    w.slurm.gpus[1] = {"n1": frozenset({0}), "n2": frozenset({0})}
    w.claim(1, (), incident="", state="watching")  # type: ignore[arg-type]
    w.run(4)
    w.mark("n1")
    w.run(40)
    assert (w.job().restart_count, w.drained()) == (0, [])
    w.run(40)
    assert w.job().restart_count == 1
    assert "n1" not in w.job().nodes
    assert w.drained() == ["n1"]


@pytest.mark.parametrize("supervised", [True, False], ids=["supervised", "protected"])
@pytest.mark.parametrize("gpus", [(), (0,)], ids=["it names none", "it names one"])
def test_a_gpus_fault_moves_no_job_that_was_given_none(
    fault_world: Make, supervised: bool, gpus: tuple[int, ...]
) -> None:
    """The node has GPUs, and other jobs use them: this one goes on to its end, and the node is drained under it."""
    w = fault_world()
    w.slurm.state.nodes = {name: replace(node, gres="gpu:h100:8") for name, node in w.slurm.state.nodes.items()}
    w.daemon.context.readings.expire()
    w.slurm.run_job(("n1",))
    w.slurm.gpus[1] = {"n1": frozenset()}
    if supervised:
        w.claim(1, (), incident="", state="watching")  # type: ignore[arg-type]
    w.run(4)
    w.mark("n1", gpus=gpus)
    w.run(100)
    assert (w.job().state, w.job().restart_count, w.job().nodes) == ("RUNNING", 0, ("n1",))
    assert (w.drained(), w.extra("n1")) == (["n1"], "")
    assert w.slurm.acts.count("requeue 1") == 0


def test_a_supervisor_that_knows_its_ranks_gpus_has_the_last_word(fault_world: Make) -> None:
    """Slurm gives out no GPUs here: only the agents see that no rank has one open, and they told of no fault."""
    w = fault_world()
    w.slurm.run_job(("n1",))
    w.claim(1, (), incident="", state="watching")  # type: ignore[arg-type]
    w.run(4)
    w.mark("n1")
    w.run(100)
    assert (w.job().restart_count, w.drained(), w.extra("n1")) == (0, ["n1"], "")


def test_a_fault_that_waits_is_shown_among_the_nodes(fault_world: Make) -> None:
    """`srobust nodes` has the node's own words beside the job that runs there."""
    w = fault_world()
    w.slurm.run_job(("n1", "n2"))
    w.claim(1, (), incident="", state="watching")  # type: ignore[arg-type]
    w.run(4)
    w.mark("n1")
    w.run(10)
    shown = {node["name"]: node["word"] for node in published(w.daemon)["nodes"]}
    assert (shown["n1"], shown["n2"]) == (f"it reports {XID}", "")


def test_a_supervised_job_that_stays_is_not_moved(fault_world: Make) -> None:
    """Its wrapper only observes: it has said so since the fault. The node is drained under it."""
    w = fault_world("breaker: {max_partition_share: 0.5}\n")
    w.slurm.run_job(("n1", "n2"))
    w.claim(1, (), incident="", state="watching")  # type: ignore[arg-type]
    w.run(4)
    w.mark("n1")
    w.run(4)
    w.claim(1, (), incident="i1", state="watching", road="seat", mode="observe", at_s=w.slurm.now_s)  # type: ignore[arg-type]
    w.run(80)
    assert (w.job().restart_count, w.drained()) == (0, ["n1"])


def test_a_supervised_job_that_claims_is_moved_by_its_claim(fault_world: Make) -> None:
    """One requeue; the node is drained with its own words as soon as the job has left."""
    w = fault_world()
    w.slurm.run_job(("n1", "n2"))
    w.claim(1, (), incident="", state="watching")  # type: ignore[arg-type]
    w.run(4)
    w.mark("n1")
    w.run(4)
    w.claim(1, ("n1",))
    w.run(40)
    assert w.slurm.acts.count("requeue 1") == 1
    assert [row.kind for row in w.journal.incidents()] == ["claim"]
    assert w.drained() == ["n1"]
    assert XID in w.slurm.state.nodes["n1"].reason


def test_a_marked_node_without_jobs_is_drained_within_seconds(fault_world: Make) -> None:
    """It left that to the daemon, which sees all nodes."""
    w = fault_world()
    w.mark("n2")
    w.run(8)
    assert w.drained() == ["n2"]
    assert w.slurm.state.nodes["n2"].reason == f"srobust: {XID}"
    assert w.extra("n2") == ""


def test_many_nodes_without_jobs_at_once_are_a_storm(fault_world: Make) -> None:
    """None of them is drained, however fast they come."""
    w = fault_world("breaker: {}\n", nodes=320)
    for i in range(1, 301):
        w.mark(f"n{i}")
    w.run(20)
    assert w.drained() == []
    (alert,) = w.alerts("nodes.fault_storm")
    assert alert.startswith("300 of 320 nodes report a fault within a minute (n[1-300]")


def test_a_fault_that_jobs_can_live_with_moves_none(fault_world: Make) -> None:
    """The node had no job when it was marked; the one that has started since runs to its end."""
    w = fault_world()
    w.slurm.run_job(("n1", "n2"))
    marker = FaultMarker(int(w.slurm.now_s), "gpu_rows", (0,), "a row remap is pending", "", spares_jobs=True)
    w.slurm.state.nodes["n2"] = replace(w.slurm.state.nodes["n2"], extra=render(marker))
    w.run(20)
    assert (w.job().restart_count, w.drained(), w.extra("n2")) == (0, ["n2"], "")


def test_observe_mode_only_says_what_would_be_done(fault_world: Make) -> None:
    """An incident, a line, and nothing that changes Slurm."""
    w = fault_world(mode=Mode.OBSERVE)
    w.slurm.run_job(("n1", "n2"))
    w.mark("n1")
    w.run(30)
    assert w.slurm.acts == []
    assert w.outcomes() == ["observed"]
    assert [text for text in w.alerts("node_fault") if "would be drained" in text] == [f"n1: would be drained: {XID}"]
    w.run(4000, step_s=10.0)
    assert len([text for text in w.alerts("node_fault") if "would be removed" in text]) == 1


def test_a_node_that_a_person_drained_is_left_to_them(fault_world: Make) -> None:
    """The job too; only our own marker goes."""
    w = fault_world()
    w.slurm.run_job(("n1",))
    node = w.slurm.state.nodes["n1"]
    w.slurm.state.nodes["n1"] = replace(node, flags=frozenset({"DRAIN"}), reason="bad fan")
    w.mark("n1")
    w.run(14)
    assert w.job().restart_count == 0
    assert w.slurm.state.nodes["n1"].reason == "bad fan"
    assert w.extra("n1") == ""


def test_old_markers_are_removed_and_not_acted_on(fault_world: Make) -> None:
    """An hour old, of the last boot, or damaged."""
    w = fault_world()
    w.slurm.run_job(("n1", "n3", "n4"))
    w.mark("n1", age_s=4000)
    w.mark("n3", age_s=600)
    w.slurm.state.nodes["n3"] = replace(w.slurm.state.nodes["n3"], boot_at_s=int(w.slurm.now_s) - 300)
    w.slurm.state.nodes["n4"] = replace(w.slurm.state.nodes["n4"], extra="rack 7 [[srobust-fault v=9 who=me]]")
    w.run(14)
    assert [w.extra(f"n{i}") for i in (1, 3, 4)] == ["", "", "rack 7"]
    assert w.drained() == []
    assert w.job().restart_count == 0


def test_with_an_open_breaker_job_and_node_stay_and_a_person_is_told_once(fault_world: Make) -> None:
    """Otherwise each job that starts on the node would be requeued, one after the other, without any bound."""
    w = fault_world("breaker: {max_drains: 0}\ndaemon: {protect: all}\n")
    w.slurm.run_job(("n1", "n2"))
    w.mark("n1")
    w.run(30)
    assert (w.job().state, w.job().restart_count, w.job().nodes) == ("RUNNING", 0, ("n1", "n2"))
    assert w.drained() == []
    assert w.extra("n1")
    assert len([text for text in w.alerts("node_fault") if "is not drained" in text]) == 1
    w.run(90)
    assert not w.daemon.node_faults.suspicious


def test_after_the_breakers_reset_the_job_is_brought_back(fault_world: Make) -> None:
    """The marker has waited for it."""
    w = fault_world()
    w.slurm.run_job(("n1", "n2"))
    w.journal.put(OPEN_KEY, "a driver roll-out")
    w.mark("n1")
    w.run(20)
    assert w.job().restart_count == 0
    request_reset(w.journal, w.slurm.now_s, "ann")
    w.run(60)
    assert (w.job().restart_count, w.drained(), w.extra("n1")) == (1, ["n1"], "")


def test_with_an_open_breaker_a_job_leaves_a_node_that_is_drained(fault_world: Make) -> None:
    """It costs no further node."""
    w = fault_world()
    w.slurm.run_job(("n1", "n2"))
    w.slurm.drain("n1", f"srobust: {XID}")
    w.run(90)
    w.journal.put(OPEN_KEY, "a driver roll-out")
    w.mark("n1")
    w.run(30)
    assert (w.job().restart_count, w.extra("n1")) == (1, "")


def test_faults_one_after_the_other_move_no_more_jobs_than_nodes_may_be_drained(fault_world: Make) -> None:
    """One each 20 s is no storm; the breaker stops it, for jobs as for nodes."""
    w = fault_world("breaker: {max_drains: 3, max_partition_share: 1.0}\ndaemon: {protect: all}\n", nodes=40)
    for i in range(1, 13):
        w.slurm.run_job((f"n{i}",), user=f"u{i}")
    for i in range(1, 13):
        w.mark(f"n{i}")
        w.run(21)
    assert len(w.drained()) == 3
    assert sum(bool(job.restart_count) for job in w.slurm.state.jobs.values()) == 3


def test_the_breakers_bound_holds_within_one_poll(fault_world: Make) -> None:
    """Each drain is counted before the next one is asked for."""
    w = fault_world("breaker: {max_drains: 8, max_partition_share: 1.0}\ndaemon: {protect: all}\n", nodes=60)
    for i in range(1, 9):
        w.slurm.run_job((f"n{i}",), user=f"u{i}")
    for i in range(31, 38):
        w.slurm.drain(f"n{i}", "srobust: x")
    w.run(600, 2)
    for i in range(1, 9):
        w.mark(f"n{i}")
    w.run(40)
    assert len(w.drained()) == 8
    assert sum(bool(job.restart_count) for job in w.slurm.state.jobs.values()) == 1


def test_a_person_who_resumes_the_node_while_its_job_waits_has_the_last_word(fault_world: Make) -> None:
    """The job waits for nodes that are not there; its recovery drains the node no second time."""
    w = fault_world()
    w.slurm.run_job(("n1", "n2", "n3", "n4", "n5", "n6"))
    w.mark("n2")
    w.run(10)
    assert (w.job().state, w.drained()) == ("PENDING", ["n2"])
    w.slurm.resume("n2")
    w.run(20)
    assert w.drained() == []
    assert w.slurm.acts.count("drain n2") == 1


@pytest.mark.parametrize("actions", range(1, 9))
def test_a_daemon_killed_at_any_step_takes_the_missing_one(fault_world: Make, actions: int) -> None:
    """Killed right after its n-th action: the job runs elsewhere, the node is drained, the marker is gone."""
    w = fault_world()
    w.slurm.run_job(("n1", "n2"))
    w.mark("n2")
    w.daemon.actor.crash = Dies(actions)
    w.run(40)
    assert (w.job().state, w.job().restart_count) == ("RUNNING", 1)
    assert "n2" not in w.job().nodes
    assert w.drained() == ["n2"]
    assert w.extra("n2") == ""
    assert w.slurm.acts.count("requeue 1") == 1


def test_a_marker_that_cannot_be_removed_holds_nothing_up(fault_world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node and job are dealt with, so is what else there is to do; and it is removed as soon as that works."""
    w = fault_world(WIDE + "standby: {size: 1}\n")

    def refused(nodes: str, extra: str) -> None:
        raise SlurmRefusedError("write the extra text", "Access denied")

    monkeypatch.setattr(w.slurm, "set_node_extra", refused)
    job = w.slurm.run_job(("n1", "n2"))
    w.mark("n2")
    w.mark("n3", age_s=4000)
    w.run(30)
    assert w.job(job.ref.job_id).restart_count == 1
    assert w.drained() == ["n2"]
    assert any("standby" in name for name in w.slurm.state.reservations)
    assert w.extra("n2")
    monkeypatch.undo()
    w.run(30)
    assert [w.extra(name) for name in ("n2", "n3")] == ["", ""]


def test_two_nodes_of_one_job_are_left_at_once(fault_world: Make) -> None:
    """One requeue, and the second faulty node is not kept for the next attempt."""
    w = fault_world()
    w.slurm.run_job(("n1", "n2", "n3"))
    w.mark("n1")
    w.mark("n3")
    w.run(20)
    assert w.slurm.acts.count("requeue 1") == 1
    assert not {"n1", "n3"} & set(w.job().nodes)
    assert w.drained() == ["n1", "n3"]
    assert [w.extra(name) for name in ("n1", "n3")] == ["", ""]


def test_a_fault_that_comes_again_is_another_incident(fault_world: Make) -> None:
    """The marker is written a second time by a service that was killed: the job is not moved twice for one fault."""
    w = fault_world()
    w.slurm.run_job(("n1", "n2"))
    marker = w.mark("n2")
    w.run(20)
    w.slurm.state.nodes["n2"] = replace(w.slurm.state.nodes["n2"], extra=render(marker))
    w.run(20)
    assert w.extra("n2") == ""
    assert w.slurm.acts.count("requeue 1") == 1
    assert w.slurm.acts.count("drain n2") == 1


def test_a_standby_node_that_is_drained_leaves_its_pool_at_once(fault_world: Make) -> None:
    """It has drained itself: the next reading of the nodes fills its place, without the ten seconds' pause."""
    w = fault_world("standby: {size: 2}\n")
    w.run(12)
    (pool,) = [r for r in w.slurm.state.reservations.values() if "standby" in r.name]
    assert pool.nodes == "n[5-6]"
    while w.daemon.standby_pools._next_at_s - w.slurm.now_s < 9:  # the pools have just been compared
        w.run(0.5)
    w.slurm.drain("n6", f"srobust: {XID}")
    w.run(7)
    (pool,) = [r for r in w.slurm.state.reservations.values() if "standby" in r.name]
    assert pool.nodes == "n[4-5]"
