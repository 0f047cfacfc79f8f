"""What a killed training has copied is written all the same, and the next one goes on from memory."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import wait_until
from worlds_server import in_worlds

from slurm_robust import checkpoint
from slurm_robust.checkpoint.saving.rank import persister_link
from slurm_robust.checkpoint.saving.shared import wire
from slurm_robust.supervise.agent import persisters
from slurm_robust.supervise.agent.ranks import Target, cluster


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[persisters.PersisterHost]:
    """The agent's part, driven by hand; ranks that the test starts believe to be in its job."""
    target = Target(f"{os.getpid()}", f"n-{request.node.name[:20]}", "", "", "test")
    monkeypatch.setenv("SLURM_JOB_ID", target.job_id)
    monkeypatch.setenv("SLURMD_NODENAME", target.node)
    monkeypatch.setenv("SLURM_CLUSTER_NAME", target.cluster)
    monkeypatch.setenv("SROBUST_ATTEMPT", "1")
    made = persisters.PersisterHost(target)
    assert made.listening() >= 0
    made.start()
    assert made.listening() == -1
    yield made
    made.end()


def test_both_sides_name_the_socket_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent may not import the checkpoint package, so the rule stands twice."""
    env = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n3", "SLURM_CLUSTER_NAME": "c"}
    assert persister_link.agent_name(env, 7) == persisters.name(Target("12", "n3", "", "", "c"), 7)
    for given in ({"SLURM_WORKING_CLUSTER": "c:host:1:2:3"}, {"SLURM_CLUSTER_NAME": ""}):
        own = cluster(env | given)
        assert persister_link.agent_name(env | given, 7) == persisters.name(Target("12", "n3", "", "", own), 7)
    assert persister_link.PROTOCOL == persisters.PROTOCOL
    assert persister_link.agent_name({"SLURM_JOB_ID": "12"}, 7) == ""


KILLED = """
import signal, time
from slurm_robust.checkpoint.saving.rank import buffers
from slurm_robust.checkpoint.saving.shared import file_writer as writing
def killed(rank, directory, point, ranks):
    training = Training("fsdp")
    saver = Checkpointer(directory)
    def reached(here):
        if here == point and saver._saves == 3 and rank in ranks:
            os.kill(os.getpid(), signal.SIGKILL)
    buffers.reached = reached
    digests = {}
    for number in (1, 2, 3):
        training.step(number)
        digests[number] = training.digest()
        if rank == 0:
            Path(f"{directory}.json").write_text(json.dumps(digests))
        dist.barrier()
        saver.save(number, training.state)
        if number == 2:
            saver.wait()
    try:
        dist.barrier()
    except RuntimeError:  # the others are dead
        pass
    os.kill(os.getpid(), signal.SIGKILL)
"""
STAGES = {"slot chosen": 2, "slot void": 2, "half copied": 2, "all copied": 2, "slot complete": 3, "nowhere": 3}


@pytest.mark.usefixtures("agent")
def test_killed_in_a_copy(tmp_path: Path) -> None:
    """Kill -9 at each stage of the third copy: a half copied one is never seen, a whole one is not lost.

    All ranks are killed at the same stage, so all have it or none. The next run loads from memory, bit for bit, and
    the disk comes to the same step.
    """
    worlds = in_worlds(
        KILLED
        + f"""
for stage in {list(STAGES)!r}:
    directory = f"{tmp_path}/{{stage.replace(' ', '-')}}"
    run(2, killed, directory, stage, (0, 1), expect=-9)
    told(run(2, load, directory, "fsdp"))
"""
    )
    for (stage, expected), loaded in zip(STAGES.items(), worlds, strict=True):
        directory = tmp_path / stage.replace(" ", "-")
        digests = json.loads((tmp_path / f"{directory.name}.json").read_text())
        assert {(rank["step"], rank["source"]) for rank in loaded} == {(expected, "memory")}, stage
        assert {rank["digest"] for rank in loaded} == {digests[str(expected)]}, stage
        deadline_s = time.monotonic() + 30
        while checkpoint.latest(directory).step != expected and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert checkpoint.latest(directory, deep=True).step == expected, stage


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Persisters give up a save whose rank has gone after four seconds; before `agent`, which starts one."""
    patched = persisters._BOOTSTRAP.replace(
        "main(sys", "import slurm_robust.checkpoint.saving.persister.main as p; p.ORPHANED_TIMEOUT_S = 4.0; main(sys"
    )
    assert patched != persisters._BOOTSTRAP
    monkeypatch.setattr(persisters, "_BOOTSTRAP", patched)


@pytest.mark.usefixtures("impatient", "agent")
@pytest.mark.parametrize("shape", ["'fsdp'", "'plain'"])
def test_half_a_save_of_a_killed_run_does_not_hold_up_the_next(tmp_path: Path, shape: str) -> None:
    """Rank 0 had its third copy whole, rank 1 was killed in it: the next training's saves do not wait for that part.

    Of the same shape, the next needs the buffer that holds it; of another, the memory.
    """
    (saved,) = in_worlds(
        KILLED
        + f"""
def go_on(rank, directory, layout):
    training = Training(layout)
    saver = Checkpointer(directory)
    for number in (4, 5, 6):
        assert saver.save(number, training.state), saver.failures
    return saver.wait(20)
run(2, killed, {str(tmp_path)!r}, "slot void", (1,), expect=-9)
told(run(2, go_on, {str(tmp_path)!r}, {shape}))
""",
        timeout_s=40,
    )
    assert saved == [6, 6]


@pytest.mark.usefixtures("agent")
def test_replicas_come_from_other_ranks_memory(tmp_path: Path) -> None:
    """Under DDP each rank holds a part of the replicated state; a restart from memory brings all of it to all."""
    first, then = in_worlds(f"""
first = run(3, train_and_save, {str(tmp_path)!r}, "ddp", 2)
told(first)
import shutil; shutil.rmtree({str(tmp_path)!r})
told(run(3, load, {str(tmp_path)!r}, "ddp"))
""")
    assert {rank["digest"] for rank in then} == {first[0]["digests"][-1]}
    assert {rank["source"] for rank in then} == {"memory"}


@pytest.mark.usefixtures("agent")
def test_memory_of_another_world_and_demoted(tmp_path: Path) -> None:
    """Three ranks take what two left in memory; what was demoted on the disk is not resumed from in memory either."""
    first, three, demoted = in_worlds(f"""
told(run(2, train_and_save, {str(tmp_path)!r}, "fsdp", 2))
told(run(3, load, {str(tmp_path)!r}, "fsdp"))
from slurm_robust import checkpoint
checkpoint.demote(checkpoint.latest({str(tmp_path)!r}).path, "training died from it")
told(run(2, load, {str(tmp_path)!r}, "fsdp"))
""")
    assert {(rank["step"], rank["source"]) for rank in three} == {(2, "memory")}
    assert {rank["digest"] for rank in three} == {first[0]["digests"][1]}
    assert {(rank["step"], rank["source"]) for rank in demoted} == {(1, "files")}
    assert {rank["digest"] for rank in demoted} == {first[0]["digests"][0]}
    assert any("training died from it" in note for note in demoted[0]["notes"])


@pytest.mark.usefixtures("agent")
def test_memory_of_a_way_that_was_given_up_is_not_used(tmp_path: Path) -> None:
    """Training went back from step 3 to step 1 for its loss: neither memory nor a late seal brings step 3 back."""
    (loaded,) = in_worlds(
        KILLED
        + f"""
from slurm_robust.checkpoint.base import rollback_log as rollbacks
run(2, killed, {str(tmp_path)!r}, "nowhere", (), expect=-9)
rollbacks.add({str(tmp_path)!r}, rollbacks.Rollback(
    at_s=time.time(), to_step=1, why="loss nan at step 3", first_batch=2, last_batch=3))
told(run(2, load, {str(tmp_path)!r}, "fsdp"))
"""
    )
    assert {(rank["step"], rank["source"]) for rank in loaded} == {(1, "files")}
    assert any("loss nan at step 3" in note for note in loaded[0]["notes"])
    wait_until(lambda: not list(tmp_path.glob("step-*/part-*")), 30, "what was copied to be sealed")
    wait_until(lambda: checkpoint.latest(tmp_path).step == 1, 5, "step 1 to be chosen")


def test_a_persister_that_dies_gets_a_successor(agent: persisters.PersisterHost, tmp_path: Path) -> None:
    """Kill -9 of the persister between two saves: nothing is lost, and the agent starts the next one."""
    killed, done = tmp_path / "killed", tmp_path / "done"
    program = f"""
import time
def go_on(rank, directory):
    training = Training("plain")
    saver = Checkpointer(directory)
    for number in (1, 2, 3, 4, 5):
        training.step(number)
        assert saver.save(number, training.state)
        if number == 2:
            Path({str(killed)!r}).touch()
            while Path({str(killed)!r}).exists():
                time.sleep(0.01)
    assert saver.wait() == 5, saver.failures
    assert saver.failures == []
go_on(0, "{tmp_path}/ckpt")
"""

    def agents_loop() -> None:
        while not done.exists():
            if killed.exists() and agent._process is not None:
                agent._process.kill()
                agent._process.wait()
                killed.unlink()
            fd = agent.listening()
            if fd >= 0 and select.select([fd], [], [], 0.05)[0]:
                agent.start()
            time.sleep(0.01)

    loop = threading.Thread(target=agents_loop)
    loop.start()
    try:
        in_worlds(program)
    finally:
        done.touch()
        loop.join()
    assert [entry.step for entry in checkpoint.entries(tmp_path / "ckpt") if entry.sealed] == [5, 4, 3]


def test_an_agent_that_ends_has_everything_written_first(agent: persisters.PersisterHost, tmp_path: Path) -> None:
    """Its end waits for what was copied; the name is free afterwards."""
    directory = tmp_path / "ckpt"
    in_worlds(KILLED + f"run(2, killed, {str(directory)!r}, 'nowhere', (), expect=-9)")
    agent.end()
    assert checkpoint.latest(directory, deep=True).step == 3
    assert wire.connect(persister_link.agent_name(os.environ, os.getuid()), 1.0) is None


def test_a_persister_to_which_nobody_comes_ends() -> None:
    """The rank that started it was killed before it could connect."""
    patched = persisters._BOOTSTRAP.replace(
        "main(sys", "import slurm_robust.checkpoint.saving.persister.main as p; p.ORPHANED_TIMEOUT_S = 0.2; main(sys"
    )
    root = str(Path(persisters.__file__).parents[3])
    with wire.listener(f"srobust-test-{os.getpid()}") as listening:
        argv = [sys.executable, "-c", patched, root, str(listening.fileno()), "-"]
        process = subprocess.Popen(argv, pass_fds=[listening.fileno()])
    try:
        assert process.wait(20) == 0
    finally:
        process.kill()
