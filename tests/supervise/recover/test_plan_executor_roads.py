"""How a plan is carried out, without a cluster: what is ended, remembered, claimed, and returned to the supervisor."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from handler_parts import Parts
from supervised import World

from slurm_robust import checkpoint
from slurm_robust.core.model import Conclusion, Failure, Plan, Road, Suspect, Verdict
from slurm_robust.marks.claim import STATE_DONE, STATE_WANTS_REQUEUE
from slurm_robust.supervise.agent.messages import CleanUp
from slurm_robust.supervise.launch import resume_points
from slurm_robust.supervise.launch.attached_step import AttachedStep
from slurm_robust.supervise.lineage import lineage_store
from slurm_robust.supervise.outcome import ExecutePlan, Exit, Relaunch

VERDICT = Verdict(Conclusion.CULPRIT, "rank 1 is stopped", (Suspect("n2", (1,), 0.95, "stopped"),), corroborated=True)
HANG = Failure("hang at x", ("n2",))


def parts_of(folder: Path, *, nodes: tuple[str, ...] = ("n1", "n2", "n3"), **more: Any) -> Parts:
    """A training on n1 and n2 with the spare n3, an open incident, and twenty steps."""
    made = Parts(World(folder, **{"command": "-N2 python train.py", "nodes": nodes, **more}))
    made.world.finds_ranks(nodes=nodes)
    made.world.trains()
    return made


def executes(parts: Parts, plan: Plan, failure: Failure | None = HANG, *, trains: bool = False) -> Exit | Relaunch:
    """The supervisor hands this plan over."""

    async def runs() -> Exit | Relaunch:
        parts.log.open("1.0.1.1", parts.world.clock.at_s, "silence suspected")
        parts.log.set_verdict(VERDICT)
        parts.log.update(plan=plan)
        return await parts.executor.execute(ExecutePlan(VERDICT, plan, failure, trains), parts.attempt, parts.start)

    return asyncio.run(runs())


def test_a_relaunch_is_returned_and_not_started(tmp_path: Path) -> None:
    """The step is ended, the nodes are clear, the failure is remembered; srun is the supervisor's to start."""
    parts = parts_of(tmp_path)
    result = executes(parts, Plan(Road.SPARE_IN_ALLOCATION, "rank 1 is stopped", evict=("n2",)))
    assert isinstance(result, Relaunch)
    assert (result.evict, result.nodes_used) == (frozenset({"n2"}), 2)
    assert "--exclude=n2" in result.argv
    assert parts.world.channel is not None
    assert (parts.world.channel.launched, parts.world.session.allocation.evicted) == ([], set())
    assert parts.world.channel.orders == ["kill"]
    assert "signal 1" in parts.world.slurm.acts, "Slurm's own kill of the step"
    assert [type(m) for m in parts.world.agents.sent] == [CleanUp, CleanUp]
    assert parts.store.lineage.failures == (HANG,)
    kept = lineage_store.load(parts.world.session.folder)
    assert parts.store.lineage in kept.runs.values()
    assert "stopped" in parts.log.incident.times
    assert parts.world.job.claim.fruitless == 0


def test_a_node_that_still_has_processes_is_left_out_too(tmp_path: Path) -> None:
    """Its processes outlive SIGKILL: it is a suspect by itself, and named in the story."""
    parts = parts_of(tmp_path, nodes=("n1", "n2", "n3", "n4"))
    parts.world.agents.still_running["n3"] = [4711]
    result = executes(parts, Plan(Road.SPARE_IN_ALLOCATION, "rank 1 is stopped", evict=("n2",)))
    assert isinstance(result, Relaunch)
    assert result.evict == frozenset({"n2", "n3"})
    assert parts.world.text("suspect") == (
        "suspect: n3 still has processes after SIGKILL: processes [4711] outlive SIGKILL"
    )


@pytest.mark.parametrize(
    ("code", "trains", "counted"), [(0, False, 1), (0, True, 0), (2, False, 0)], ids=["failed", "trains", "other code"]
)
def test_what_is_counted_of_an_attempt_without_a_new_step(
    tmp_path: Path, *, code: int, trains: bool, counted: int
) -> None:
    """Neither one in which nothing has failed, nor one whose version of the code is replaced."""
    parts = parts_of(tmp_path)
    parts.store.lineage = replace(parts.store.lineage, reached=100)
    executes(parts, Plan(Road.RESTART_IN_PLACE, "again", code=code), trains=trains)
    known, claim = parts.store.lineage, parts.world.job.claim
    assert (known.fruitless, len(known.failures), known.restarts_in_place) == (counted, counted, counted)
    assert (claim.fruitless, claim.failed_since_s > 0) == (counted, bool(counted))


def test_a_pause_is_kept_before_the_relaunch(tmp_path: Path) -> None:
    """The step is ended first, the story says how long, and then the training is started again."""
    parts = parts_of(tmp_path)
    began_s = parts.world.clock.at_s
    result = executes(parts, Plan(Road.RESTART_IN_PLACE, "storage is away", pause_s=40.0))
    assert isinstance(result, Relaunch)
    assert parts.world.clock.at_s - began_s >= 40.0
    assert parts.world.text("waiting") == "waiting 40 s before the next attempt"


def test_a_pause_ends_with_the_launcher(tmp_path: Path) -> None:
    """Nobody is left who would start anything."""
    parts = parts_of(tmp_path)
    assert parts.world.channel is not None
    parts.world.channel.gone.set()
    began_s = parts.world.clock.at_s
    executes(parts, Plan(Road.RESTART_IN_PLACE, "storage is away", pause_s=4000.0))
    assert parts.world.clock.at_s - began_s < 100.0


def test_without_a_spare_node_the_job_is_requeued(tmp_path: Path) -> None:
    """Two nodes are needed, and one is left: the daemon is asked, and the launcher becomes the waiting shell."""
    parts = parts_of(tmp_path, nodes=("n1", "n2"))
    result = executes(parts, Plan(Road.SPARE_IN_ALLOCATION, "rank 1 is stopped", evict=("n2",)))
    assert result == Exit(75)
    claim = parts.world.job.claim
    assert (claim.state, claim.evict, claim.incident) == (STATE_WANTS_REQUEUE, ("n2",), parts.log.incident.id)
    assert claim.why.endswith("no spare node is left in the allocation")
    assert parts.world.channel is not None
    assert parts.world.channel.orders == ["kill", "part", "part"]
    assert parts.world.agents.stops == 1


def test_nodes_that_all_have_processes_share_a_cause(tmp_path: Path) -> None:
    """More than half of a job's nodes: none of them is left out, and the job is requeued."""
    parts = parts_of(tmp_path, nodes=("n1", "n2", "n3"))
    parts.world.agents.still_running.update({"n1": [5], "n2": [6], "n3": [7]})
    assert executes(parts, Plan(Road.RESTART_IN_PLACE, "nothing explains it")) == Exit(75)
    assert parts.world.job.claim.evict == ()
    assert "a cause that they share" in parts.world.job.claim.why
    assert parts.world.kinds.count("suspect") == 0


def test_a_stop_is_the_last_claim_and_forgets_the_training(tmp_path: Path) -> None:
    """The plan's own exit code; another training in this place begins with an empty lineage."""
    parts = parts_of(tmp_path)
    assert executes(parts, Plan(Road.STOP, "three attempts without a new step", exit_code=93)) == Exit(93)
    assert parts.log.incident.outcome == "Stopped for good, exit code 93."
    assert parts.world.text("stopped") == "stopped, exit code 93: three attempts without a new step"
    assert (parts.world.job.claim.state, parts.world.job.claim.why) == (
        STATE_DONE,
        "three attempts without a new step",
    )
    assert lineage_store.load(parts.world.session.folder).runs == {}


def test_somebody_elses_srun_keeps_its_own_exit_code(tmp_path: Path) -> None:
    """It waits with its code: no attempt follows, and nothing of its step is killed."""
    step = AttachedStep("0")
    step._received = "ended 7\n"
    parts = parts_of(tmp_path, command=None, attached=step)
    parts.exit_of(1, code=7)
    assert executes(parts, Plan(Road.STOP, "its own error", exit_code=93)) == Exit(7)
    assert "srun ends with its own exit code 7" in parts.world.text("stopped")
    assert parts.world.agents.sent == []


def test_somebody_elses_step_is_given_a_moment_to_end_by_itself(tmp_path: Path) -> None:
    """The other ranks follow the dead one: our own kill would become srun's exit code. After five seconds it comes."""
    parts = parts_of(tmp_path, command=None, attached=AttachedStep("0"))
    parts.exit_of(1, code=7)
    began_s = parts.world.clock.at_s
    assert executes(parts, Plan(Road.STOP, "its own error", exit_code=7)) == Exit(7)
    assert parts.world.clock.at_s - began_s == pytest.approx(5.0, abs=0.3)
    assert [type(m) for m in parts.world.agents.sent] == [CleanUp]


def test_a_checkpoint_from_which_attempts_die_is_demoted(tmp_path: Path) -> None:
    """As often as the site says; the next launch is given the one before it."""
    directory = tmp_path / "ck"
    for step in (10, 100):
        checkpoint.save(directory, step, {"x": step})
    parts = parts_of(tmp_path / "story", checkpoint_dir=str(directory))
    limit = parts.world.session.config.checkpoint.demote_after_failed_starts
    parts.attempt.resume_point = resume_points.look_up(str(directory))
    assert parts.attempt.resume_point.step == 100
    for _ in range(limit):
        assert "is demoted" not in parts.world.text("checkpoint")
        executes(parts, Plan(Road.RESTART_IN_PLACE, "nothing explains it"))
    assert f"{limit} attempts died before their first step from it" in parts.world.text("checkpoint")
    assert resume_points.look_up(str(directory)).step == 10
