"""What ranks write before they end decides what is done: node, program, or something that nodes share."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Submit, Training, free_port  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
Cluster = Callable[..., DevCluster]

UNRELATED = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
from slurm_robust import progress
here = pathlib.Path(sys.argv[1])
ERRORS = {"n1": "the prefetch queue is empty", "n2": "no tensor of that name in the bucket"}
port = 20000 + (int(os.environ["MASTER_PORT"]) + len(list(here.glob("failed-*")))) % 10000
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
node, again = os.environ["SLURMD_NODENAME"], (here / "failed-n1").exists()
mark, first = here / f"failed-{node}", 3 if again else 0  # it resumes
for step in range(first, 30):
    progress.step(step)
    dist.all_reduce(torch.ones(4))
    time.sleep(0.1)
    if step == 3 and node == ("n2" if again else "n1") and not mark.exists():
        mark.touch()
        raise RuntimeError(ERRORS[node])
"""


def program(tmp_path: Path, text: str) -> str:
    """The command of a program that is given the job's folder; anything behind it is left out."""
    tmp_path.chmod(0o755)
    (tmp_path / "job").mkdir(exist_ok=True)
    path = tmp_path / "job" / "program.py"
    path.write_text(text)
    return f"srobust run --robust-checkpoint-dir={tmp_path}/job/ck {sys.executable} {path} {tmp_path}/job #"


def assert_no_node_is_touched(job: Training) -> None:
    """Nobody is drained, in quarantine, or left out."""
    assert all(line["evict"] == [] for line in job.told("decided")), job.everything()
    assert all(not node.drained for node in job.client.nodes())
    assert not job.reservations("srobust-quarantine")


def test_the_same_cuda_error_twice_on_one_node_leaves_it_and_has_it_tested(cluster: Cluster, submit: Submit) -> None:
    """In place first; at the second time without that node, which is checked in quarantine and comes back. No other."""
    dev = cluster(standby=0)
    job = submit(dev, nodes=3, steps=20, fault={"kind": "cuda_error", "rank": -1, "node": "n2", "step": 3}, again=True)
    job.hears("claimed")
    wait_until(lambda: job.reservations("srobust-quarantine"), 30, "the quarantine")
    ended = job.ends(150)
    assert (ended.state, ended.restart_count) == ("COMPLETED", 1), job.everything()
    assert "n2" not in ended.nodes
    assert all("unspecified launch failure" in line["text"] for line in job.told("verdict")), job.everything()
    decided = [(line["road"], line["evict"]) for line in job.told("decided")]
    assert decided == [("restart_in_place", []), ("seat", ["n2"])], job.everything()
    wait_until(lambda: not job.reservations("srobust-quarantine"), 60, "the node's way out of quarantine")
    assert all(not node.drained for node in job.client.nodes())
    last = max(job.story_folder.glob("*/incident.json"))
    cause = json.loads(last.read_text())["cause"]
    assert (cause["category"], cause["blame"], cause["node"]) == ("cuda_error", "either", "n2")
    assert "unspecified launch failure" in next(job.story_folder.glob("*/report.md")).read_text()
    job.assert_clean_slurm()


@pytest.mark.variant
def test_two_unrelated_errors_on_two_nodes_let_the_job_go_on(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    """Both are RuntimeErrors at the same step: neither is the other one again, and each has its restart in place."""
    dev = cluster(standby=0)
    job = submit(dev, nodes=2, command=program(tmp_path, UNRELATED))
    ended = job.ends(120)
    assert (ended.state, ended.restart_count) == ("COMPLETED", 0), job.everything()
    assert [line["road"] for line in job.told("decided")] == ["restart_in_place"] * 2, job.everything()
    first, second = (line["text"] for line in job.told("verdict"))
    assert "the prefetch queue is empty" in first
    assert "no tensor of that name" in second
    assert_no_node_is_touched(job)


CASCADE = """
import atexit, os, sys, time
import torch, torch.distributed as dist
from slurm_robust import progress
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", f"tcp://127.0.0.1:{sys.argv[2]}", rank=rank, world_size=world)

def aborted():
    e = f"[rank{rank}]:[E1122 03:04:05.678 ProcessGroupNCCL.cpp:685] [Rank {rank}] "
    for text in (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, "
        "Timeout(ms)=600000) ran for 600019 milliseconds before timing out.",
        "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU "
        "operations might run on corrupted/incomplete data.",
        "To avoid data inconsistency, we are taking the entire process down.",
    ):
        print(e + text, file=sys.stderr, flush=True)
    os.abort()

for step in range(30):
    progress.step(step)
    time.sleep(0.1)
    if rank == 1 and step == 8:
        dist.destroy_process_group()
        atexit.register(time.sleep, 2)  # the others are gone before it
        len(step)
    try:
        dist.all_reduce(torch.ones(4))
    except RuntimeError:
        aborted()
"""


def test_a_cascade_of_time_outs_after_a_type_error_stops_with_the_programs_code(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    """Two ranks abort with NCCL's messages before the one that raised has ended: its line is the reason."""
    dev = cluster(standby=0)
    command = program(tmp_path, CASCADE)
    job = submit(dev, nodes=3, command=command.replace("/job #", f"/job {free_port()} #"))
    ended = job.ends(120)
    assert ended.state == "FAILED", job.everything()
    assert "object of type 'int' has no len()" in job.hears("stopped")["text"], job.everything()
    # As without us: the highest code of any rank is srun's, 134 for those that aborted.
    assert ended.exit_code in ("1:0", "134:0"), job.everything()
    assert job.told("relaunched") == []
    assert_no_node_is_touched(job)


def test_a_rank_that_raises_and_never_ends_stops_the_job(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    """Its teardown hangs, and the others wait for it: by their stacks alone its node would be the suspect."""
    dev = cluster(standby=0)
    command = program(tmp_path, CASCADE.replace("atexit.register(time.sleep, 2)", "atexit.register(time.sleep, 9999)"))
    text = (tmp_path / "job" / "program.py").read_text().replace("dist.destroy_process_group()", "pass")
    (tmp_path / "job" / "program.py").write_text(text)
    job = submit(dev, nodes=3, command=command.replace("/job #", f"/job {free_port()} #"))
    stopped = job.hears("stopped", 90)
    assert "object of type 'int' has no len()" in stopped["text"], job.everything()
    assert "the program's own error" in job.hears("verdict")["text"], job.everything()
    ended = job.ends()
    assert (ended.state, ended.exit_code) == ("FAILED", "93:0"), job.everything()
    assert_no_node_is_touched(job)


READS = """
import os, pathlib, sys, time
from slurm_robust import progress
here = pathlib.Path(sys.argv[1])
saved = here / f"step-{os.environ['SLURM_PROCID']}"
first = int(saved.read_text()) if saved.exists() else 0
for step in range(first, 60):
    (here / "data" / "shard").read_bytes()
    progress.step(step)
    saved.write_text(str(step))
    time.sleep(0.1)
"""


@contextmanager
def unavailable(folder: Path) -> Iterator[None]:
    """The file system of this folder has lost its server: a FUSE mount whose program is gone, as when s3fs dies."""
    libc = ctypes.CDLL(None, use_errno=True)
    fuse = os.open("/dev/fuse", os.O_RDWR)
    try:
        options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"gone", bytes(folder), b"fuse.gone", 0, options) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(fuse)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK), reason="needs root and /dev/fuse")
@pytest.mark.parametrize("outage_s", [8, pytest.param(60, marks=pytest.mark.variant)])
def test_a_storage_outage_is_waited_for(cluster: Cluster, submit: Submit, tmp_path: Path, outage_s: float) -> None:
    """Every rank meets ENOTCONN, again and again: pauses that grow, nobody evicted, and training goes on."""
    dev = cluster(standby=0)
    command = program(tmp_path, READS)
    data = tmp_path / "job" / "data"
    data.mkdir()
    (data / "shard").write_bytes(b"tokens")
    job = submit(dev, nodes=2, command=command)
    job.hears("training")
    back = threading.Event()
    with unavailable(data):
        threading.Timer(outage_s, back.set).start()
        began_s = time.time()
        first = job.hears("waiting")
        assert back.wait(outage_s + 30)
    resumed = job.hears("resumed", outage_s + 60)
    ended = job.ends(120)
    assert (ended.state, ended.exit_code, ended.restart_count) == ("COMPLETED", "0:0", 0), job.everything()
    assert resumed["at_s"] - began_s >= outage_s
    waits = [line for line in job.told("waiting") if line["text"].startswith("waiting ")]
    assert [line["text"] for line in waits[:2]] == [
        "waiting 5 s before the next attempt",
        "waiting 10 s before the next attempt",
    ], job.everything()
    assert "Transport endpoint is not connected" in first["text"] or first in waits
    verdicts = [line["text"] for line in job.told("verdict")]
    assert all("what nodes share is not available, no node is at fault" in text for text in verdicts), job.everything()
    assert_no_node_is_touched(job)
