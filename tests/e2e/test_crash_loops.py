"""Programs that fail again and again: no command line, no loop in the script and no requeue makes them run for ever.

And programs that cannot resume by themselves: what they have saved is not overwritten in silence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Submit  # type: ignore[import-not-found]

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(300)]
Cluster = Callable[..., DevCluster]

DIES = """
import os, pathlib, signal, sys
rank = int(os.environ["SLURM_PROCID"])
if rank == 0:
    with (pathlib.Path(sys.argv[1]) / "launches").open("a") as f:
        f.write(" ".join(sys.argv[2:]) + "\\n")
if rank == int(os.environ["SLURM_NTASKS"]) - 1:
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
"""


def program(tmp_path: Path, source: str) -> tuple[str, Path]:
    """The words that run this program, and the folder that it is given."""
    tmp_path.chmod(0o755)
    path = tmp_path / "program.py"
    path.write_text(source)
    return f"{sys.executable} {path} {tmp_path}/job", tmp_path / "job"


@pytest.mark.variant
def test_arguments_that_differ_in_each_attempt_do_not_make_it_run_for_ever(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    """PyTorch's own Slurm example has a random rendezvous port: three attempts without a step are enough for 93.

    A run that prepares, and succeeds in each attempt, does not make the training's failures forgotten.
    """
    dev = cluster(standby=0)
    dies, folder = program(tmp_path, DIES)
    command = f"srobust run -n1 true\nsrobust run {dies} --rdzv_endpoint=$(hostname):$RANDOM --rdzv_id=$RANDOM #"
    job = submit(dev, nodes=2, command=command)
    ended = job.ends(240)
    launches = (folder / "launches").read_text().splitlines()
    assert (ended.state, ended.exit_code, len(launches)) == ("FAILED", "93:0", 3), job.everything()
    assert len(set(launches)) > 1, "the arguments differed"
    assert "3 attempts in a row without a new step" in job.hears("stopped")["text"]


@pytest.mark.variant
def test_a_loop_in_the_script_does_not_make_it_run_for_ever(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    """Each turn of the loop is a run of its own. What ends badly without a new step is counted for the whole job.

    Runs that succeed are not counted, whatever their number.
    """
    dev = cluster(standby=0, supervise={"fruitless_attempts": 1, "fruitless_launches_per_hour": 3})
    dies, folder = program(tmp_path, DIES)
    loop = "for turn in 1 2 3 4 5 6"
    command = f"{loop}; do srobust run -n1 true || exit 1; done\n"
    command += f"{loop}; do srobust run -n1 {dies} $turn; echo $? >> {folder}/codes; done #"
    job = submit(dev, nodes=1, command=command)
    job.ends(240)
    assert (folder / "launches").read_text().split() == ["1", "2", "3"], job.everything()
    assert (folder / "codes").read_text().split() == ["93"] * 6, job.everything()
    refused = job.told("refused")
    assert len(refused) == 3, job.everything()
    assert "3 launches" in refused[0]["text"]
    assert "supervise.fruitless_launches_per_hour" in refused[0]["text"]


SAVES = """
import os, pathlib, signal, sys, time
here, rank = pathlib.Path(sys.argv[1]), int(os.environ["SLURM_PROCID"])
saved = here / "ckpt.pt"
first = int(saved.read_text()) + 1 if "--init_from=scratch" not in sys.argv else 0
for step in range(first, 60):
    if rank == 0:
        print(f"iter {step}: loss 2.5", flush=True)
        if step % 10 == 9:
            saved.write_text(str(step))
    time.sleep(0.15)
    if step == 25 and not (here / f"died{rank}").exists():
        (here / f"died{rank}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
SCRIPT = "FROM=--init_from=scratch\n[ -f {folder}/ckpt.pt ] && FROM=--init_from=resume\nsrobust run {saves} $FROM #"


def test_a_script_that_chooses_the_checkpoint_is_run_again(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    """The choice stands in the batch script, which a restart in place does not run again: so the job is requeued."""
    dev = cluster(standby=0)
    saves, folder = program(tmp_path, SAVES)
    job = submit(dev, nodes=2, command=SCRIPT.format(folder=folder, saves=saves))
    decided = job.hears("decided")
    assert (decided["road"], job.told("relaunched")) == ("seat", []), job.everything()
    assert "runs the script again" in decided["text"], job.everything()
    ended = job.ends(240)
    assert (ended.state, ended.restart_count) == ("COMPLETED", 1), job.everything()
    assert job.output().count("iter 0:") == 1, job.everything()
    assert "resumed from what the program found by itself" in job.hears("resumed")["text"], job.everything()


def test_a_restart_that_begins_again_is_told_loudly(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    """The same script where the job may not be requeued: restarted in place, from zero, and never called resumed."""
    dev = cluster(standby=0)
    saves, folder = program(tmp_path, SAVES)
    job = submit(dev, nodes=2, command=SCRIPT.format(folder=folder, saves=saves), sbatch=("--no-requeue",))
    loud = job.hears("started-over")
    assert "THE PROGRAM STARTED AGAIN FROM STEP 0" in loud["text"], job.everything()
    assert "SROBUST_RESUME_PATH" in loud["text"], "and what to type"
    ended = job.ends(240)
    assert (ended.state, ended.restart_count) == ("COMPLETED", 0), job.everything()
    resumed = [line["text"] for line in job.told("resumed")]
    assert all("resumed from" not in text for text in resumed), job.everything()
