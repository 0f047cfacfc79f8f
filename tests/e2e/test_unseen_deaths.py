"""Ranks that vanish with their step's daemon, so that srun reports no end of them: who is blamed?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Submit, free_port  # type: ignore[import-not-found]

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
Cluster = Callable[..., DevCluster]

MEETING = """
import os, pathlib, signal, socket, sys, time
here, port = pathlib.Path(sys.argv[1]), int(sys.argv[2]) + int(os.environ.get("SLURM_RESTART_COUNT", "0"))
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
saved = here / "step"
if rank == 0:
    listener = socket.create_server(("127.0.0.1", port))
    peers = [listener.accept()[0] for _ in range(world - 1)]
else:
    while True:
        try:
            peers = [socket.create_connection(("127.0.0.1", port))]
            break
        except OSError:
            time.sleep(0.1)


def receive(peer):
    try:
        got = peer.recv(1)
    except OSError:
        got = b""
    if not got:
        raise ConnectionResetError("peer gone in all_reduce")


def all_reduce():
    if rank:
        peers[0].sendall(b".")
    for peer in peers:
        receive(peer)
    if not rank:
        for peer in peers:
            peer.sendall(b".")


def vanish():
    parent = os.getppid()
    assert pathlib.Path(f"/proc/{parent}/comm").read_text().startswith("slurmstepd")
    os.kill(parent, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


first = int(saved.read_text()) if saved.exists() else 0
for step in range(first, 40):
    if step == 25 and os.environ["SLURMD_NODENAME"] == "n2" and os.environ["SLURM_LOCALID"] == "0":
        time.sleep(3)  # by then the agents have found all ranks
        vanish()
    all_reduce()
    time.sleep(0.1)
    if rank == 0:
        print("step", step, flush=True)
        saved.write_text(str(step + 1))
"""


@pytest.mark.variant
def test_the_node_whose_steps_daemon_vanishes_is_left_at_the_second_time_and_no_other(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    """Its ranks vanish twice at one step; those of n1 raise an exception in words of their own, and only followed."""
    dev = cluster(standby=0)
    program = tmp_path / "program.py"
    tmp_path.chmod(0o755)
    program.write_text(MEETING)
    run = f"srobust run {sys.executable} {program} {tmp_path}/job {free_port()} #"
    job = submit(dev, nodes=2, command=run, sbatch=("--ntasks-per-node=2",))
    ended = job.ends(200)
    assert ended.state == "COMPLETED", job.everything()
    assert "n1 died first" not in " ".join(line["text"] for line in job.told("verdict")), job.everything()
    assert all("ranks 2-3 on n2" in line["text"] for line in job.told("verdict")), job.everything()
    assert [line["evict"] for line in job.told("decided")] == [[], ["n2"]], job.everything()
    assert "n2" not in ended.nodes
