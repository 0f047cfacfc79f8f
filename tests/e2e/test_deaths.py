"""Ranks die: who is blamed, and how training goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Submit, free_port  # type: ignore[import-not-found]
from helpers import mounted_tmpfs

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
Cluster = Callable[..., DevCluster]
PATIENT = {"suspicion_floor_s": 20.0, "corroborate_after_s": 30.0}
"""For stories of deaths: on a busy machine a Python takes longer to end, or to start, than the suspicion of a hang."""


def test_a_killed_rank_is_restarted_in_place_and_no_node_is_blamed(cluster: Cluster, submit: Submit) -> None:
    """SIGKILL from nowhere, once: the same nodes again, from the checkpoint, without a requeue.

    Nothing is asked of the daemon, and its journal has the incident all the same: open, then resumed.
    """
    dev = cluster()
    job = submit(dev, fault={"kind": "kill", "rank": 1, "step": 8})
    nodes = set()
    job.hears("training")
    nodes = set(job.job().nodes)
    decided = job.hears("decided")
    assert decided["road"] == "restart_in_place", job.everything()
    assert job.hears("resumed")["resume_step"] == 5
    ended = job.ends()
    assert (ended.state, ended.restart_count, set(ended.nodes)) == ("COMPLETED", 0, nodes), job.everything()
    assert all(not n.drained for n in job.client.nodes())
    assert not job.reservations("srobust-quarantine")
    found = job.incident_closed()
    assert (found["kind"], found["mode"], found["outcome"]) == ("report", "act", "resumed")
    assert found["plan"]["road"] == "restart_in_place"
    assert {"fault", "decided", "first_new_step"} <= set(found["times"])


def test_a_user_exception_ends_the_job_with_its_own_code_and_blames_no_node(cluster: Cluster, submit: Submit) -> None:
    """TypeError on one rank: no restart, no requeue, no claim; exit code 1, as without us."""
    dev = cluster(supervise=PATIENT)
    job = submit(dev, fault={"kind": "exception", "rank": 2, "step": 8}, again=True)
    ended = job.ends()
    assert (ended.state, ended.exit_code, ended.restart_count) == ("FAILED", "1:0", 0), job.everything()
    assert "TypeError" in job.hears("verdict")["text"]
    assert job.told("claimed") == []
    assert job.told("relaunched") == []
    assert all(not n.drained for n in job.client.nodes())


def test_attempts_without_a_new_step_stop_the_job_with_93(cluster: Cluster, submit: Submit) -> None:
    """A rank that is killed at the same step again and again: no crash loop (two in a row here, three by default)."""
    dev = cluster(standby=0, supervise={"fruitless_attempts": 2})
    job = submit(dev, nodes=2, fault={"kind": "kill", "rank": 1, "step": 3}, again=True)
    ended = job.ends(150)
    assert ended.state == "FAILED", job.everything()
    assert ended.exit_code == "93:0", job.everything()
    assert "attempts in a row without a new step" in job.hears("stopped")["text"]
    job.assert_clean_slurm()


@pytest.mark.variant
def test_the_same_failure_on_another_node_is_the_programs(cluster: Cluster, submit: Submit) -> None:
    """It came again on its node, which was left, and came on the next: stopped with its own code, no node drained."""
    dev = cluster(standby=0)
    job = submit(dev, nodes=2, fault={"kind": "kill", "rank": 1, "step": 3}, again=True)
    ended = job.ends(150)
    assert (ended.state, ended.exit_code) == ("FAILED", "137:0"), job.everything()
    assert "no node's" in job.hears("stopped")["text"]
    assert all(not n.drained for n in job.client.nodes())
    job.assert_clean_slurm()


BROKEN_GPU = """
import os, time
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    for step in range(12):
        dist.all_reduce(torch.ones(4))
        print("step", step, flush=True)
        time.sleep(0.1)
        if step == 5 and (os.environ["SLURMD_NODENAME"], os.environ["LOCAL_RANK"]) == ("n2", "1"):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

main()
"""


@pytest.mark.variant
def test_a_cuda_error_of_one_worker_under_torchrun_leaves_its_node_at_the_second(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    """Both tasks end with exit code 1, the workers say nothing: torchrun's table has the words, and whose."""
    dev = cluster(standby=0)
    program = tmp_path / "program.py"
    tmp_path.chmod(0o755)
    program.write_text(BROKEN_GPU)
    torchrun = f"{sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d"
    command = f"srobust run {torchrun} --rdzv-endpoint=localhost:{free_port()} {program} #"
    job = submit(dev, nodes=2, command=command)
    ended = job.ends(200)
    # Both times by a requeue: nothing shows that the command alone resumes.
    assert (ended.state, ended.restart_count) == ("COMPLETED", 2), job.everything()
    assert "n2" not in ended.nodes
    assert all("rank" in v["text"] and "illegal memory access" in v["text"] for v in job.told("verdict"))
    decided = [(line["road"], line["evict"]) for line in job.told("decided")]
    assert decided == [("seat", []), ("seat", ["n2"])], job.everything()


SAVES = """
import os, sys, time
import torch
from slurm_robust import progress
for step in range(40):
    progress.step(step)
    time.sleep(0.1)
    if step % 10 == 5 and os.environ["SLURM_PROCID"] == "0":
        torch.save({"w": torch.zeros(1 << 18)}, f"{sys.argv[1]}/step-{step}.pt")
"""


def test_a_full_checkpoint_disk_stops_the_job_and_is_named(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    """torch.save does not say what is wrong: no restart onto the same disk, no node blamed, and what to free."""
    with mounted_tmpfs(tmp_path / "disk", "2500k", mode=777) as disk:
        dev = cluster(standby=0)
        program = tmp_path / "program.py"
        tmp_path.chmod(0o755)
        program.write_text(SAVES)
        run = f"srobust run --robust-checkpoint-dir={disk} {sys.executable} {program} {disk} #"
        job = submit(dev, nodes=2, command=run)
        ended = job.ends()
        assert (ended.state, ended.exit_code, ended.restart_count) == ("FAILED", "1:0", 0), job.everything()
        assert "found a full disk" in job.hears("verdict")["text"]
        assert f"{disk} is full" in job.hears("stopped")["text"]
        assert "srobust ckpt prune" in job.hears("stopped")["text"]
        assert job.told("relaunched") == []


COLLECTIVE = "import time\n\n\ndef all_reduce():\n    while True:\n        time.sleep(1000)\n"
WAITING = """
import os, pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(here / "site-packages"))
from torch.distributed.distributed_c10d import all_reduce
rank, again = int(os.environ["SLURM_PROCID"]), (here / "died").exists()
time.sleep(3 if again else 6)  # by then the agents have found it
if not again and rank == 1:
    (here / "died").touch()
    os.kill(os.getpid(), signal.SIGKILL)
if not again:
    all_reduce()
time.sleep(2 * rank)  # ranks end one by one
"""


def test_a_dead_rank_is_noticed_where_sruns_words_go_elsewhere(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    """No output file to read and no progress: the agents miss it, the others wait for it, and that is enough.

    The second attempt's ranks end seconds apart, and nothing is made of that.
    """
    dev = cluster(standby=0)
    collective = tmp_path / "job" / "site-packages" / "torch" / "distributed"
    collective.mkdir(parents=True)
    (collective / "distributed_c10d.py").write_text(COLLECTIVE)
    (collective / "__init__.py").touch()
    (collective.parent / "__init__.py").touch()
    program = tmp_path / "job" / "program.py"
    program.write_text(WAITING)
    run = f"srobust run {sys.executable} {program} {tmp_path}/job 2>&1 | cat > /dev/null #"
    job = submit(dev, command=run)
    suspected = job.hears("suspected")
    assert "rank 1" in suspected["text"]
    assert "exit status unknown" in suspected["text"]
    assert suspected["at_s"] - job.hears("note")["at_s"] < 10, job.everything()
    assert job.hears("decided")["road"] == "restart_in_place", job.everything()
    ended = job.ends()
    assert (ended.state, ended.restart_count) == ("COMPLETED", 0), job.everything()
    assert len(job.told("decided")) == 1, job.everything()


RESTARTED = """
import os, pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1])
from slurm_robust import progress
for step in range(60):
    progress.step(step)
    time.sleep(0.1)
    if step == 20 and os.environ["RANK"] == "1" and not (here / "died").exists():
        (here / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_torchruns_own_restart_is_left_to_it_and_told(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    """A worker dies, torchrun starts all of them anew: said at the start and when it happens, and nothing is done."""
    dev = cluster(standby=0, nodes=2, supervise=PATIENT)
    program = tmp_path / "program.py"
    tmp_path.chmod(0o755)
    program.write_text(RESTARTED)
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=2"
    job = submit(dev, nodes=1, command=f"srobust run {torchrun} {program} {tmp_path}/job #")
    ended = job.ends()
    assert (ended.state, ended.restart_count) == ("COMPLETED", 0), job.everything()
    notes = [line["text"] for line in job.told("note")]
    assert any("another restarter" in text for text in notes), job.everything()
    assert any("ranks 0-1 started anew inside the step" in text for text in notes), job.everything()
    assert job.told("decided") == [], job.everything()
    assert job.told("relaunched") == [], job.everything()
