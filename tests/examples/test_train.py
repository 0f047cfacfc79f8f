"""The example trains, resumes exactly, and breaks the way it is told to: real processes, gloo on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import train
from helpers import quick_torch

from slurm_robust import checkpoint, progress

TRAIN = Path(train.__file__)
Ranks = list["subprocess.Popen[str]"]
Start = Callable[..., Ranks]


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    """Without what Slurm, torchrun or a wrapper around the tests may have set."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "MASTER_", "SROBUST", "TRAIN_")) and name not in ("RANK", "WORLD_SIZE")
    }
    return {**kept, "PYTHONPATH": str(TRAIN.parents[1]), **more}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(*args)`: the ranks of a step as srun starts them, ended with all their children."""
    running: Ranks = []

    def begin(*args: object, ranks: int = 2, fault: dict[str, object] | None = None, program: Path = TRAIN) -> Ranks:
        port = str(free_port())
        started = [
            subprocess.Popen(
                [sys.executable, str(program), "--width", "16", "--layers", "1", *map(str, args)],
                env=environment(
                    PYTHONPATH=quick_torch(TRAIN.parents[1]) if program == TRAIN else str(TRAIN.parents[1]),
                    SLURM_PROCID=str(rank),
                    SLURM_NTASKS=str(ranks),
                    SLURM_LOCALID="0",
                    SLURM_JOB_ID="1",
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=port,
                    **({"TRAIN_FAULT": json.dumps(fault)} if fault else {}),
                ),
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for rank in range(ranks)
        ]
        running.extend(started)
        return started

    yield begin
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the rank's own session: its data loaders too
        process.communicate()


def finish(ranks: Ranks) -> str:
    """Wait for all; what rank 0 printed."""
    outputs = [process.communicate(timeout=90) for process in ranks]
    assert [process.returncode for process in ranks] == [0] * len(ranks), outputs
    return outputs[0][0]


def weights(directory: Path, step: int) -> dict[str, torch.Tensor]:
    """The model of a step's checkpoint."""
    model: dict[str, torch.Tensor] = checkpoint.load(directory / f"step-{step:08d}")["model"]
    return model


def test_a_resumed_run_goes_on_exactly(start: Start, tmp_path: Path) -> None:
    """Six steps at once, and three and then three more, end in the same weights to the last bit."""
    said = finish(start("--steps", 6, "--checkpoint-dir", "once", "--checkpoint-every", 3, "--eval-every", 3))
    assert "step 6/6 loss=" in said
    assert "step 3/6 eval_loss=" in said
    finish(start("--steps", 3, "--checkpoint-dir", "twice"))
    said = finish(start("--steps", 6, "--checkpoint-dir", "twice"))
    assert "resumed from step 3" in said
    assert "step 3/6" not in said
    found = checkpoint.latest(tmp_path / "once", deep=True)
    assert (found.step, found.passed_over) == (6, ())
    once, twice = weights(tmp_path / "once", 6), weights(tmp_path / "twice", 6)
    assert all(torch.equal(once[name], twice[name]) for name in once)
    early = weights(tmp_path / "once", 3)
    assert not all(torch.equal(once[name], early[name]) for name in once)


@pytest.mark.variant
def test_a_sharded_run_that_was_told_to_end_goes_on_exactly(start: Start, tmp_path: Path) -> None:
    """SIGTERM in the middle: the step it was at is sealed, and the next run's losses are those of one whole run."""
    program = TRAIN.with_name("fsdp.py")
    first = start("--steps", 5000, "--checkpoint-dir", "twice", program=program)
    assert first[0].stdout is not None
    while not (line := first[0].stdout.readline()).startswith("step 4/"):
        assert line, first[0].communicate()
    for rank in first:
        rank.terminate()
    step = int(finish(first).rsplit("finished, step ", 1)[1].split()[0])
    assert 4 <= step < 5000
    assert checkpoint.latest(tmp_path / "twice", deep=True).step == step
    more = ("--steps", step + 2, "--checkpoint-every", 1, "--checkpoint-dir")
    twice = finish(start(*more, "twice", program=program))
    assert f"resumed from step {step} (files)" in twice
    once = finish(start(*more, "once", program=program))
    told = [[line for line in run.splitlines() if line.startswith("step ")][-2:] for run in (once, twice)]
    assert told[0] == told[1]
    assert told[0][1].startswith(f"step {step + 2}/")


def step_of(pid: int) -> progress.ProgressRecord | None:
    """What a rank says of itself."""
    path = progress.find(pid)
    if path is None:
        return None
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return progress.read(fd)
    finally:
        os.close(fd)


def until(what: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait for it, with a deadline."""
    end_s = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.05)


def test_a_loader_that_hangs(start: Start, tmp_path: Path) -> None:
    """The ranks stay at the step before, alive, with start-up marks seen from outside; the once-file is there."""
    once = tmp_path / "done"
    fault: dict[str, object] = {"kind": "loader_hang", "rank": 1, "step": 4, "once_file": str(once)}
    ranks = start("--steps", 9, "--checkpoint-every", 2, fault=fault)

    def at_step_three() -> bool:
        records = [step_of(process.pid) for process in ranks]
        return once.exists() and all(record is not None and record.step == 3 for record in records)

    until(at_step_three)
    before = [step_of(process.pid) for process in ranks]
    time.sleep(1.0)  # nothing can be awaited: that nothing happens is the point
    assert [step_of(process.pid) for process in ranks] == before
    assert all(process.poll() is None for process in ranks)
    record = before[1]
    assert record is not None
    assert record.pid == ranks[1].pid
    assert set(record.marks) == {"imports_done", "process_groups_ready", "checkpoint_loaded"}
    assert record.layout == {"dp": 2}
    assert record.phase == "train"
    assert checkpoint.latest(tmp_path / "checkpoints").step == 2


def test_an_exception_ends_the_rank(start: Start) -> None:
    """A TypeError in the training code, with its traceback and exit code 1."""
    ranks = start("--steps", 9, "--workers", 0, fault={"kind": "exception", "rank": 1, "step": 2})
    _, errors = ranks[1].communicate(timeout=90)
    assert ranks[1].returncode == 1
    assert "TypeError: object of type 'int' has no len()" in errors


def test_under_torchrun(tmp_path: Path) -> None:
    """The same program, started by torchrun."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"),
            *(str(TRAIN), "--steps", "2", "--width", "16", "--layers", "1", "--workers", "0"),
        ],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert checkpoint.latest(tmp_path / "checkpoints").step == 2


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n3", "n3"),
        ("n[3-5,9]", "n3"),
        ("n[003-005]", "n003"),
        ("gpu[07,09]-ib,login1", "gpu07-ib"),
        ("a1,b[2-3]", "a1"),
        ("node-1.site", "node-1.site"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    """Slurm's folded syntax, without asking Slurm."""
    assert train.first_host(nodes) == first


def test_rendezvous_from_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks come from the step and not from the job; the port changes with job and step, not between ranks."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        # Set first, so that what rendezvous() leaves behind goes with the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in {
        "SLURM_PROCID": "3",
        "SLURM_NTASKS": "5",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_LOCALID": "1",
        "SLURM_JOB_ID": "12",
        "SLURM_STEP_ID": "2",
        "SLURM_STEP_NODELIST": "no-such-host-[1-4]",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.7",
    }.items():
        monkeypatch.setenv(name, value)
    assert train.rendezvous() == (3, 4, 1)
    assert os.environ["MASTER_ADDR"] == "127.0.0.7"
    port = os.environ.pop("MASTER_PORT")
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    train.rendezvous()
    assert port != os.environ["MASTER_PORT"]
    assert 20000 <= int(port) < 30000
