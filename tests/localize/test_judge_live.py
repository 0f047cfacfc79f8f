"""Real ranks over gloo, real data loaders, real dumps: the scenes of the other tests must look like these."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from helpers import quick_torch, wait_until

from slurm_robust.core.model import Conclusion
from slurm_robust.localize.evidence import Capture, CapturedProcess, Evidence, RankCapture
from slurm_robust.localize.judge import judge
from slurm_robust.localize.stacks.known_names import Kind
from slurm_robust.localize.stacks.process_tree import loaders, rank_place
from slurm_robust.localize.stacks.pyspy import PySpyDumpError, parse

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install '.[torch]'"
    ),
    pytest.mark.timeout(120),
]

WORLD = 3
VICTIM = """
import os, sys, threading
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])

class Data(Dataset):
    def __len__(self):
        return 10_000
    def __getitem__(self, index):
        if rank == 1 and index >= 80:
            lock = threading.Lock()
            with lock:
                lock.acquire()
        return torch.ones(8)

def evaluate(model):
    total = 0.0
    batch = torch.ones(64, 8)
    while not (folder / "go-on").exists():
        (folder / "evaluating").touch()
        out = model(batch)
        total += float(out.sum())

def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 8)
    wrapped = DistributedDataParallel(model)
    for step, batch in enumerate(DataLoader(Data(), batch_size=4, num_workers=1)):
        if step == 5 and rank == 0:
            evaluate(model)
        wrapped(batch).sum().backward()

main()
"""


@dataclass
class Job:
    """Ranks that run, each on a node of its own by name."""

    ranks: list[subprocess.Popen[bytes]]
    folder: Path

    def capture(self) -> Capture:
        """Dumps and /proc facts of every process of every rank, as the node agents take them."""
        at_s = time.time()
        return Capture(at_s, tuple(self._rank(n, p.pid) for n, p in enumerate(self.ranks)))

    def _rank(self, number: int, pid: int) -> RankCapture:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        return RankCapture(number, f"n{number}", tuple(_process(p) for p in tree))

    def evidence(self, *captures: Capture) -> Evidence:
        """These captures of this job."""
        return Evidence(WORLD, {n: f"n{n}" for n in range(WORLD)}, captures)


def _process(process: psutil.Process) -> CapturedProcess:
    spy = Path(sys.executable).with_name("py-spy")
    proc = Path(f"/proc/{process.pid}")
    command = [str(spy), "dump", "--nonblocking", "--json", "--pid", str(process.pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    state = next(line.split()[1] for line in (proc / "status").read_text().splitlines() if line.startswith("State:"))
    times = process.cpu_times()
    io = process.io_counters()
    try:
        threads, error = parse(done.stdout), ""
    except PySpyDumpError as refused:
        threads, error = (), f"{refused} {done.stderr}"
    cpu_s = times.user + times.system
    name = " ".join(process.cmdline())
    wchan = (proc / "wchan").read_text()
    moved = io.read_chars + io.write_chars
    counted = process.num_threads()
    return CapturedProcess(process.pid, process.ppid(), state, name, cpu_s, moved, wchan, threads, error, counted)


@contextlib.contextmanager
def training(folder: Path) -> Iterator[Job]:
    """Three real ranks; ended, with their loaders, whatever happens."""
    script = folder / "victim.py"
    script.write_text(VICTIM)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    job = Job([], folder)
    try:
        for rank in range(WORLD):
            env = {**os.environ, **shared, "RANK": str(rank), "PYTHONPATH": quick_torch()}
            with (folder / f"rank-{rank}.log").open("wb") as log:
                command = [sys.executable, str(script), str(folder)]
                job.ranks.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
        yield job
    finally:
        for rank_process in job.ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(rank_process.pid).children(recursive=True):
                    child.kill()
            rank_process.kill()
            rank_process.wait()


def test_evaluation_then_a_loader_that_hangs_then_one_that_is_stopped(tmp_path: Path) -> None:
    """One run, three looks: rank 0 evaluates (nobody is blamed); rank 1's loader hangs; rank 1's loader is stopped."""
    with training(tmp_path) as job:

        def peers_wait(number: int) -> bool:
            ranks = {r.rank: rank_place(r) for r in job.capture().ranks}
            return all(place.waits_for_peers for rank, place in ranks.items() if rank != number)

        wait_until((tmp_path / "evaluating").exists, 60, "rank 0 evaluates")
        wait_until(lambda: peers_wait(0), 20, "ranks 1 and 2 wait for rank 0")
        first = job.capture()
        time.sleep(2.5)  # the time between two captures is what is judged
        verdict = judge(job.evidence(first, job.capture()))
        assert not verdict.suspects
        assert verdict.conclusion in (Conclusion.NONE, Conclusion.UNDETERMINED)
        assert "rank 0" in verdict.reason

        (tmp_path / "go-on").touch()
        wait_until(lambda: rank_place(job.capture().ranks[1]).kind is Kind.LOADER and peers_wait(1), 20, "the hang")
        first = job.capture()
        time.sleep(4.2)
        verdict = judge(job.evidence(first, job.capture()))
        assert verdict.corroborated, verdict
        assert [(s.node, s.ranks, s.infrastructure) for s in verdict.suspects] == [("n1", (1,), False)]
        assert "__getitem__" in verdict.reason

        worker = loaders(first.ranks[1])[0].pid
        os.kill(worker, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(worker).status() == psutil.STATUS_STOPPED, 5, "the loader is stopped")
        first = job.capture()
        time.sleep(2.1)
        verdict = judge(job.evidence(first, job.capture()))
        assert verdict.corroborated, verdict
        assert [s.node for s in verdict.suspects] == ["n1"]
        assert f"{worker} is stopped" in verdict.reason
