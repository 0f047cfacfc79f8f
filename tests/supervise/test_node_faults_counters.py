"""An attempt that is ended for what a node has reported: neither the program nor its checkpoint has failed."""

from __future__ import annotations

from pathlib import Path

from faulty_training import Training

from slurm_robust.model import Failure, FailureCause
from slurm_robust.supervise.recover import lineage_store
from slurm_robust.supervise.recover.lineage import Lineage, LineageMemory, Tally


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
