"""An attempt that is ended for what a node has reported: neither the program nor its checkpoint has failed."""

from __future__ import annotations

from pathlib import Path

from faulty_training import Training

from slurm_robust.core.model import Failure, FailureCause
from slurm_robust.supervise.lineage import lineage_store
from slurm_robust.supervise.lineage.lineage import Lineage, LineageMemory, Tally


def memory_of(job: Training) -> LineageMemory:
    """What is remembered now."""
    return lineage_store.load(job.world.session.folder)


def test_a_mild_fault_moves_a_job_that_trains_after_two_fruitless_attempts(tmp_path: Path) -> None:
    """It resumed below the step that it had come to, and is on its way there."""
    script = {
        15: lambda: job.finds("n2", "at_next_checkpoint", kind="gpu_rows", text="a row remap is pending", gpus=(0,)),
        18: lambda: job.saves(18),
    }
    job = Training(tmp_path, script, last_step=60)
    job.saves(10)
    crash = Failure("exit 1", ("n1",), FailureCause.EITHER)
    known = Lineage("line", reached=30, fruitless=2, failures=(crash, crash), first_step=0)
    lineage_store.save(job.world.session.folder, "run 1", known, Tally())
    assert job.ends() == 0
    assert job.excluded == ["n2"]
    assert job.step == 60
    assert "stopped" not in job.world.kinds


def test_two_moves_before_the_first_step_do_not_demote_the_checkpoint(tmp_path: Path) -> None:
    """Each attempt is left within a second for a lost GPU: neither the checkpoint nor the program has failed."""
    job = Training(tmp_path, {}, nodes=("n1", "n2", "n3", "n4", "n5"))
    job.saves(10)
    job.starts_s = 70.0
    job.at_launch = {1: lambda: job.finds("n2"), 2: lambda: job.finds("n3")}
    seen: list[LineageMemory] = []
    job.script = {30: lambda: seen.append(memory_of(job))}
    assert job.ends() == 0
    assert job.excluded == ["n2", "n2,n3"]
    assert job.launches == 3
    assert job.computed == list(range(11, 41))
    (known,) = seen[0].runs.values()
    assert (known.fruitless, known.failed_starts, known.failures) == (0, 0, ())
    assert seen[0].tally.count == 0
    assert "is demoted" not in job.world.text("checkpoint")


def test_a_start_from_an_older_checkpoint_is_not_its_failure(tmp_path: Path) -> None:
    """The newer one was demoted; then a node of the next attempt loses a GPU."""
    job = Training(tmp_path, {})
    job.saves(10)
    job.starts_s = 70.0
    job.at_launch = {1: lambda: job.finds("n2")}
    known = Lineage("line", reached=30, start_step=20, failed_starts=2, first_step=0)
    lineage_store.save(job.world.session.folder, "run 1", known, Tally())
    assert job.ends() == 0
    assert job.computed == list(range(11, 41))
