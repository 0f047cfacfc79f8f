"""What memory holds of a training that saves through the Checkpointer: ranks killed, the job requeued, or ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hung_rank
import pytest
from conftest import Submit  # type: ignore[import-not-found]
from helpers import quick_torch, wait_until

from slurm_robust import checkpoint
from slurm_robust.devcluster.cluster import DevCluster, Spec

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[2]

PROGRAM = (
    hung_rank.SOURCE
    + """
import gc, json, os, signal, socket, struct, sys, time
sys.path.insert(0, sys.argv[1])
import torch, torch.distributed as dist
from train import rendezvous
from slurm_robust import progress
from slurm_robust.checkpoint import Checkpointer, TierOptions
wanted = json.loads(sys.argv[2])
rank, world, _ = rendezvous()
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=world)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
state = {"model": model, "optimizer": optimizer}
saver = Checkpointer("ckpt", tiers=TierOptions(every=wanted.get("every")))
if "save_on" in wanted:
    saver.save_on(*wanted["save_on"])

def say(text):  # srun, and with it what was printed, may be gone before its ranks
    with open(f"said.{rank}", "a") as file:
        file.write(text + "\\n")

def persister():
    return struct.unpack("3i", saver.link._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]

first = (saver.load_latest(state) or 0) + 1
say(f"rank {rank} starts at {first} from {saver.resumed.source or 'nothing'}, by agent: {saver.link.by_agent}")
for step in range(first, wanted.get("steps", 12) + 1):
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    progress.step(step)
    before = persister() if step > first else 0
    assert saver.save(step, state)
    if saver.stopping:
        say(f"last: {json.dumps([step, saver.last_sealed, before == persister(), saver.link.by_agent])}")
        break
    if rank == 1 and step == 8 and first == 1 and "fault" in wanted:
        os.kill(os.getpid(), wanted["fault"]) if wanted["fault"] else wait_in_the_kernel()
    if step == 5:
        say("step 5")
    time.sleep(wanted.get("pause_s", 0))
saver.close()
say(f"rank {rank} has saved {saver.last_sealed}, kept by {saver.backups}")
# A process group that outlives main has threads of gloo's: now and then they abort the exit.
del model, optimizer, state, saver
gc.collect()
dist.destroy_process_group()
"""
)


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[DevCluster]:
    """Two nodes, no daemon: the restart is in place."""
    cluster = DevCluster.up(Spec(nodes=2, robust_yaml={"ladder": {"tests": []}}))
    yield cluster
    cluster.down()


def command(**wanted: Any) -> str:
    """Run the program with these wishes."""
    run = f"{sys.executable} -m slurm_robust.cli.main run --robust-checkpoint-dir=ckpt -N2 -n2"
    return f"unset OMP_NUM_THREADS; {run} {sys.executable} program.py {ROOT / 'examples'} '{json.dumps(wanted)}'"


@pytest.fixture
def start(two_nodes: DevCluster, tmp_path: Path) -> Callable[..., str]:
    """Submits the program, with wishes; the job's number."""

    def send(**wanted: Any) -> str:
        (tmp_path / "program.py").write_text(PROGRAM)
        (tmp_path / "job.sh").write_text(f"#!/bin/bash\n{command(**wanted)}\n")
        env = {**os.environ, **two_nodes.env, "PYTHONPATH": quick_torch(ROOT)}
        submit = ["sbatch", "--parsable", "-N2", "-n2", "--ntasks-per-node=1", "--output=out", "job.sh"]
        done = subprocess.run(submit, cwd=tmp_path, env=env, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    return send


def said(folder: Path) -> list[str]:
    """What each rank said."""
    return [path.read_text() for path in sorted(folder.glob("said.*"))]


def starts(folder: Path, number: int) -> set[tuple[str, str, str]]:
    """(step, source, by an agent) of the ranks' first or a later start."""
    found = [re.findall(r"starts at (\d+) from (\S+), by agent: (\w+)", text) for text in said(folder)]
    assert len(found) == 2
    return {one[number] for one in found}


def test_a_killed_training_goes_on_from_memory(start: Callable[..., str], tmp_path: Path) -> None:
    """SIGKILL of a rank right after a save: its node's agent holds the copy, and the relaunch loads it, step 8."""
    start(fault=9)
    wait_until(lambda: "".join(said(tmp_path)).count("has saved 12") == 2, 150, "both ranks' last save")
    kept = "has saved 12, kept by ((1,), (0,))"
    assert "".join(said(tmp_path)).count(kept) == 2, said(tmp_path)  # each on the other's node
    assert starts(tmp_path, 0) == {("1", "nothing", "True")}
    assert starts(tmp_path, 1) == {("9", "memory", "True")}
    assert checkpoint.latest(tmp_path / "ckpt", deep=True).step == 12


@pytest.mark.parametrize(
    "how", ["scancel", pytest.param("scancel --signal=USR1", marks=pytest.mark.variant)], ids=["scancel", "USR1"]
)
def test_the_last_save_on_the_way_out(
    start: Callable[..., str], two_nodes: DevCluster, tmp_path: Path, how: str
) -> None:
    """The job is ended, or is told of its end (`--signal`): what was in memory only is sealed, by the same persister.

    Its agent stays for that, though it got the signal, too; and the job ends when its ranks have.
    """
    job = start(save_on=[10, 15], every={"shared": 1000}, steps=10_000, pause_s=0.05)
    wait_until(lambda: "".join(said(tmp_path)).count("step 5") == 2, 60, "step 5 of both ranks")
    env = {**os.environ, **two_nodes.env}
    subprocess.run([*how.split(), job], env=env, check=True)

    def gone() -> bool:
        listed = subprocess.run(["squeue", "-h", "-j", job], env=env, check=False, capture_output=True, text=True)
        return not listed.stdout.strip()

    wait_until(gone, 25, "the end of the job")  # in less than KillWait
    lasts = [json.loads(text) for one in said(tmp_path) for text in re.findall(r"last: (.*)", one)]
    assert len(lasts) == 2, said(tmp_path)
    step = lasts[0][0]
    assert lasts == [[step, step, True, True]] * 2
    assert checkpoint.latest(tmp_path / "ckpt", deep=True).step == step > 5


def test_memory_is_written_before_a_requeue(cluster: Callable[..., DevCluster], submit: Submit, tmp_path: Path) -> None:
    """A rank waits in the kernel, its node goes, the job is requeued: eight steps were in memory only.

    Agents end with the first run, and memory with them: the ninth step is the next, from what they wrote before.
    """
    dev = cluster(nodes=3, standby=0)
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    folder.chmod(0o777)
    run = command(fault=0, every={"shared": 1000}, steps=10, pause_s=0.1)
    job = submit(dev, nodes=2, command=f"{run} #")
    assert job.hears("decided")["road"] == "seat", job.everything()
    ended = job.ends()
    assert (ended.state, ended.restart_count) == ("COMPLETED", 1), job.everything()
    assert starts(folder, 0) == {("1", "nothing", "True")}
    assert starts(folder, 1) == {("9", "files", "True")}, job.everything()
    assert job.hears("resumed")["resume_step"] == 8
