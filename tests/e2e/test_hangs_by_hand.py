"""A hang behind a collective that was written by hand: it is told long before anything may be done about it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from conftest import Submit, free_port  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240), pytest.mark.variant]

PROGRAM = """
import os, socket, sys, threading, time
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
port, fault = int(sys.argv[1]), sys.argv[2]
peers = []
if rank == 0:
    listener = socket.create_server(("127.0.0.1", port))
    peers = [listener.accept()[0] for _ in range(world - 1)]
else:
    while not peers:
        try:
            peers = [socket.create_connection(("127.0.0.1", port))]
        except OSError:
            time.sleep(0.1)

def reduce_all():
    for peer in peers:
        peer.sendall(b"x")
    for peer in peers:
        assert peer.recv(1)

def hang():
    if fault == "lock":
        lock = threading.Lock()
        lock.acquire()
        threading.Thread(target=wait_for_go, args=(lock,), daemon=True).start()
        lock.acquire()
    while fault == "loop" and not os.path.exists("go"):
        sum(range(1000))

def wait_for_go(lock):
    while not os.path.exists("go"):
        time.sleep(1)
    lock.release()

for step in range(1, 40):
    time.sleep(0.3)
    if rank == 2 and step == 20:
        hang()
    reduce_all()
    if rank == 0:
        print(f"step {step} loss {1 / step:.4f}", flush=True)
"""


@pytest.mark.parametrize("fault", ["lock", "loop"])
@pytest.mark.parametrize("mode", ["act", "observe"])
def test_it_is_told_and_taken_back(
    cluster: Callable[..., DevCluster], submit: Submit, fault: str, mode: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The story, and the first line of `srobust status`, say what to type; and nothing once training moves again."""
    dev = cluster(standby=0, mode=mode)
    program = tmp_path_factory.mktemp("program") / "by_hand.py"
    program.write_text(PROGRAM)
    program.parent.chmod(0o755)
    command = f"SROBUST_PROGRESS=0 srobust run {sys.executable} {program} {free_port()} {fault}; exit; : "
    job = submit(dev, nodes=3, command=command)
    note = wait_until(lambda: [e for e in job.told("note") if "srobust stacks" in e["text"]], 90, "the note")[0]["text"]
    assert ("nothing is done before " in note) is (mode == "act"), job.everything()

    def status() -> str:
        return " ".join(dev.run(["srobust", "status"]).stdout.split())

    wait_until(lambda: f"job {job.id} of " in status().partition("cluster ")[0], 40, "the first line of status")
    said = status()
    assert f"srobust stacks {job.id}; scontrol requeue {job.id} (starts it anew)" in said
    assert ("nothing is done about it for another" if mode == "act" else "(observe mode)") in said
    log = dev.directory / "log" / "srobustd.log"
    wait_until(lambda: "training.hangs" in log.read_text(), 30, "the message")
    (job.folder / "go").touch()
    job.hears("cleared", 30)
    assert job.ends(60).state == "COMPLETED", job.everything()
    assert not job.told("decided"), job.everything()
    assert log.read_text().count("training.hangs") == log.read_text().count("training.moves") == 1, job.everything()
