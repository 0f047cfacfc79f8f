"""Marked faults where clocks differ, plans are old, GPUs are not known, or somebody has to act first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from faults_world import WIDE, XID, Faults, Make

from slurm_robust.core.model import Mode
from slurm_robust.daemon.controllers.breaker import OPEN_KEY, request_reset
from slurm_robust.slurm.client import Job

GPUS = "gpu:h100:8"


def watched(w: Faults, **said: object) -> None:
    """The job's supervisor says this, as of now by the clock of its own node."""
    w.claim(1, (), incident=str(said.pop("incident", "")), state="watching", **said)


@pytest.mark.parametrize("ahead_s", [30, 65, 4000])
def test_a_clock_that_is_ahead_loses_no_fault(fault_world: Make, ahead_s: float) -> None:
    """Its marker counts from when the daemon saw it."""
    w = fault_world()
    w.slurm.run_job(("n1",))
    w.run(4)
    w.mark("n1", age_s=-ahead_s)
    w.run(20)
    assert (w.job().restart_count, w.drained(), w.extra("n1")) == (1, ["n1"], "")


def test_a_marker_from_the_future_gets_old_all_the_same(fault_world: Make) -> None:
    """An hour after the daemon saw it."""
    w = fault_world("breaker: {max_drains: 0}\n")
    w.mark("n1", age_s=-86400)
    w.run(3500, 10)
    assert w.extra("n1")
    w.run(300, 10)
    assert w.extra("n1") == ""


def test_a_clock_that_is_behind_loses_no_fault(fault_world: Make) -> None:
    """By it, the job would have started after the fault."""
    w = fault_world()
    w.run(120)
    w.slurm.run_job(("n1",))
    w.run(20)
    w.mark("n1", age_s=60)
    w.run(20)
    assert (w.job().restart_count, w.drained()) == (1, ["n1"])


def test_a_job_that_is_about_to_start_is_waited_for(fault_world: Make) -> None:
    """Slurm requeues none in its prolog; as soon as it runs, it is brought back."""
    w = fault_world()
    job = w.slurm.run_job(("n1", "n2"))
    w.slurm.state.jobs[1] = replace(job, state="CONFIGURING")
    w.run(4)
    w.mark("n1")
    w.run(20)
    assert (w.drained(), bool(w.extra("n1"))) == ([], True)
    w.slurm.state.jobs[1] = replace(w.job(), state="RUNNING")
    w.run(30)
    assert (w.job().restart_count, w.drained(), w.extra("n1")) == (1, ["n1"], "")


def test_a_supervisor_that_observes_keeps_its_job_whatever_its_clock(fault_world: Make) -> None:
    """It has said so in its claim, with the time of another node."""
    w = fault_world()
    w.slurm.run_job(("n1", "n2"))
    watched(w)
    w.run(10)
    w.mark("n1")
    w.run(2)
    watched(w, road="alert_only", mode="observe", at_s=w.slurm.now_s - 3000)
    w.run(90)
    assert (w.job().restart_count, w.drained()) == (0, ["n1"])


@pytest.mark.parametrize("off_s", [-50, 0, 50])
def test_a_plan_for_this_fault_keeps_the_job(fault_world: Make, off_s: float) -> None:
    """Told before the daemon read the nodes, by a clock that differs."""
    w = fault_world()
    w.slurm.run_job(("n1", "n2"))
    watched(w)
    w.run(30)
    watched(w, incident="i2", road="alert_only", mode="act", at_s=w.slurm.now_s + off_s)
    w.run(3)
    w.mark("n1")
    w.run(90)
    assert (w.job().restart_count, w.drained()) == (0, ["n1"])


def test_an_old_plan_does_not_keep_the_job(fault_world: Make) -> None:
    """Its claim is written again and again, with the plan for another incident; also after the daemon's restart."""
    w = fault_world()
    w.slurm.run_job(("n1", "n2"))
    w.slurm.gpus[1] = {"n1": frozenset({0})}
    watched(w, incident="i1", road="alert_only", mode="act", at_s=w.slurm.now_s)
    w.run(60)
    w.live()
    w.run(8)
    w.mark("n1")
    for step in range(12):
        watched(w, incident="i1", road="alert_only", mode="act", at_s=w.slurm.now_s, step=step)
        w.run(8)
    assert (w.job().restart_count, w.drained()) == (1, ["n1"])


@pytest.mark.parametrize(
    ("gpus", "gres", "moved"),
    [
        ({"n1": frozenset()}, GPUS, False),
        ({"n1": frozenset({1})}, GPUS, False),
        ({}, GPUS, True),
        ({"n1": frozenset()}, "", True),
    ],
    ids=["none", "another", "not known", "not given out by Slurm"],
)
def test_a_job_without_gpus_is_not_moved_for_one(
    fault_world: Make, gpus: dict[str, frozenset[int]], gres: str, moved: bool
) -> None:
    """Slurm says which GPUs a job has, where it gives them out."""
    w = fault_world()
    w.slurm.state.nodes = {name: replace(node, gres=gres) for name, node in w.slurm.state.nodes.items()}
    w.daemon.context.readings.expire()
    w.run(4)
    w.slurm.run_job(("n1",))
    w.slurm.gpus[1] = gpus
    w.mark("n1", gpus=(0,))
    w.run(14)
    assert (w.job().restart_count, w.drained()) == (int(moved), ["n1"])


def crowd(w: Faults) -> list[Job]:
    """Three nodes with eight jobs each, one for each GPU."""
    jobs = [w.slurm.run_job((f"n{node}",)) for node in (1, 2, 3) for _ in range(8)]
    for number, job in enumerate(jobs):
        w.slurm.gpus[job.ref.job_id] = {job.nodes[0]: frozenset({number % 8})}
    return jobs


@pytest.mark.parametrize("mode", [Mode.ACT, Mode.OBSERVE])
def test_a_marker_that_waits_for_a_person_costs_slurmctld_little(fault_world: Make, mode: Mode) -> None:
    """With an open breaker, and in observe mode: it is said once, and looked at again twice a minute."""
    w = fault_world(WIDE, nodes=12, mode=mode)
    crowd(w)
    w.journal.put(OPEN_KEY, "a driver roll-out")
    w.run(4)

    def calls(seconds: float) -> int:
        before = w.daemon.context.calls
        w.run(seconds)
        return w.daemon.context.calls - before

    quiet = calls(240)
    for node in (1, 2, 3):
        w.mark(f"n{node}", gpus=(0,))
        w.run(80)
    assert calls(240) <= quiet + 3 * 240 / 30 + 3
    assert w.drained() == []
    assert [XID in text for text in w.alerts("node_fault")].count(True) >= 3


def test_the_gpus_of_a_job_are_asked_for_once(fault_world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only where that decides something: not for a job that nobody would move."""
    w = fault_world(nodes=12)
    jobs = crowd(w)
    w.slurm.state.jobs[2] = replace(jobs[1], requeueable=False)
    asked: list[int] = []
    answer = w.slurm.job_gpus
    monkeypatch.setattr(w.slurm, "job_gpus", lambda ref: asked.append(ref.job_id) or answer(ref))
    watched(w)
    w.run(4)
    w.mark("n1", gpus=(0,))
    w.run(40)
    assert sorted(asked) == [1, 3, 4, 5, 6, 7, 8]


def test_a_new_fault_of_a_node_that_waits_is_looked_at_at_once(fault_world: Make) -> None:
    """Only the same marker is left alone for a while."""
    w = fault_world()
    w.journal.put(OPEN_KEY, "a driver roll-out")
    w.mark("n1")
    w.run(10)
    assert w.extra("n1")
    request_reset(w.journal, w.slurm.now_s, "ann")
    w.mark("n1")
    w.run(5)
    assert w.drained() == ["n1"]
