"""How long a step stands still for a checkpoint: ours, torch.save, torch.distributed.checkpoint (DCP), a bare copy.

    python benchmarks/checkpoint_stall.py [--json] [--quick] [--gib 0.5,2]

Each way runs in a process of its own on the same state, a model with AdamW, and saves several times, each save after
the one before is on the disk. The stall is the time until the training may change its tensors again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from lib import Report, Target, machine, show_table, spread
from rich.console import Console
from torch import nn

GIB = 1 << 30
LAYERS = 24
OURS, COPY = "Checkpointer", "copy"
ASYNC = ("async_save", "async_save, kept buffers", "async_save, shared memory, process")
WAYS = (COPY, OURS, "torch.save", "DCP save", *ASYNC)
STALL_RATIO, DCP_RATIO = 1.2, 0.5


def training(gib: float) -> dict[str, Any]:
    """A model of `LAYERS` layers and its optimizer, with a state of so many GiB together."""
    width = int((gib * GIB / 12 / 12 / LAYERS) ** 0.5)
    with torch.device("meta"):
        layers = [
            nn.Sequential(nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Linear(width, 4 * width))
            for _ in range(LAYERS)
        ]
        model = nn.Sequential(*layers)
    model.to_empty(device="cpu")
    for param in model.parameters():
        nn.init.normal_(param)
        param.grad = torch.ones_like(param)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    optimizer.step()
    for param in model.parameters():
        param.grad = None
    return {"model": model, "optimizer": optimizer}


def tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    """All of them."""
    held = [value for kept in state["optimizer"].state.values() for value in kept.values()]
    return [*(param.detach() for param in state["model"].parameters()), *held]


def plain(state: dict[str, Any]) -> dict[str, Any]:
    """What is given to torch.save and DCP: the cheapest way to ask for it."""
    return {"model": state["model"].state_dict(), "optimizer": state["optimizer"].state_dict()}


Save = Callable[[int], Callable[[], object]]
"""Saves a step and returns what waits until it is on the disk; the call itself is the stall."""


def nothing() -> None:
    """Nothing is left to wait for."""


def prepared(way: str, state: dict[str, Any], folder: Path) -> Save:
    """How that way saves."""
    if way == COPY:
        source = tensors(state)
        target = [torch.empty_like(tensor).zero_() for tensor in source]

        def copy(_: int) -> Callable[[], object]:
            torch._foreach_copy_(target, source)
            return nothing

        return copy
    if way == OURS:
        from slurm_robust.checkpoint import Checkpointer  # noqa: PLC0415 (the others do without)

        saver = Checkpointer(folder, keep=1)
        saver.prepare(state)

        def ours(step: int) -> Callable[[], object]:
            assert saver.save(step, state), saver.failures
            return saver.wait

        return ours
    if way == "torch.save":

        def torchs(step: int) -> Callable[[], object]:
            torch.save(plain(state), folder / f"{step}.pt")
            return nothing

        return torchs
    if way == "DCP save":

        def dcps(step: int) -> Callable[[], object]:
            dcp.save(plain(state), checkpoint_id=folder / str(step))
            return nothing

        return dcps
    return asynchronous(way, state, folder)


def asynchronous(way: str, state: dict[str, Any], folder: Path) -> Save:
    """DCP's own, as it comes and with what makes it faster on CPUs."""
    options: dict[str, Any] = {}
    if way != "async_save":
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions  # noqa: PLC0415 (torch ≥ 2.9)
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType  # noqa: PLC0415 (the same)

        # Pinned memory and asynchronous staging need CUDA.
        shared = way.endswith("process")
        options["async_stager"] = DefaultStager(StagingOptions(False, shared, False, False))
        options["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS if shared else AsyncCheckpointerType.THREAD

    def save(step: int) -> Callable[[], object]:
        done = dcp.async_save(plain(state), checkpoint_id=folder / str(step), **options)
        if hasattr(done, "staging_completion"):
            done.staging_completion.result()
            return done.upload_completion.result  # type: ignore[no-any-return]
        return done.result  # type: ignore[no-any-return]

    return save


def one(way: str, gib: float, repeats: int, folder: Path) -> dict[str, Any]:
    """Measure one way, in this process."""
    # Two threads that copy together wait for the slower one: on a busy machine that is noise of its own.
    torch.set_num_threads(1)
    if way.startswith("async"):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29871"}
        dist.init_process_group("gloo", rank=0, world_size=1)
    state = training(gib)
    state_bytes = sum(tensor.nbytes for tensor in tensors(state))
    before = memory_bytes()
    save = prepared(way, state, folder)
    stalls, written, most = [], [], 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.1):
            most = max(most, memory_bytes() - before)

    for step in range(repeats + 1):
        began_s = time.perf_counter()
        wait = save(step)
        stalled_s = time.perf_counter() - began_s
        wait()
        if step:  # the first one allocates, starts processes and makes plans
            stalls.append(stalled_s)
            written.append(time.perf_counter() - began_s)
        for old in [path for path in folder.iterdir() if way != OURS]:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    # Once more for the memory: looking costs time.
    watcher = threading.Thread(target=watch)
    watcher.start()
    save(repeats + 1)()
    done.set()
    watcher.join()
    return {"stall_s": stalls, "written_s": written, "state_bytes": state_bytes, "extra_bytes": most}


def memory_bytes() -> int:
    """What this process and those it started hold that is not a file's: anonymous and shared, shared parts once."""
    return sum(_held_bytes(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _held_bytes(entry: Path) -> int:
    try:
        if f"STALL_MARK={os.environ['STALL_MARK']}" not in (entry / "environ").read_text():
            return 0
        told = (entry / "smaps_rollup").read_text()
    except (OSError, UnicodeDecodeError):
        return 0
    return sum(map(int, re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+)", told, re.MULTILINE))) << 10


def restarts(gib: float, folder: Path) -> dict[str, float]:
    """Load the newest checkpoint into a fresh training: from the memory an agent keeps, and from files."""
    from slurm_robust.supervise.agent.persist import Persist  # noqa: PLC0415 (only here)
    from slurm_robust.supervise.agent.ranks import Target as Watched  # noqa: PLC0415 (the same)

    env = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURMD_NODENAME": "bench",
        "SLURM_CLUSTER_NAME": "b",
        "SROBUST_ATTEMPT": "1",
    }
    keeper = Persist(Watched(env["SLURM_JOB_ID"], "bench", "", "", "b"))
    keeper.listening()
    keeper.start()
    found = {}
    try:
        child("--seed-memory", str(gib), str(folder), env=env)
        found["memory_s"] = float(child("--load", str(gib), str(folder), env=env)["load_s"])
        found["files_s"] = float(child("--load", str(gib), str(folder), env={})["load_s"])
    finally:
        keeper.end()
    return found


def load(gib: float, folder: Path, *, first: bool) -> dict[str, Any]:
    """In a child: save once, or load once."""
    from slurm_robust.checkpoint import Checkpointer  # noqa: PLC0415 (only here)

    state = training(gib)
    saver = Checkpointer(folder)
    if first:
        saver.save(1, state)
        saver.close()
        return {}
    began_s = time.perf_counter()
    assert saver.load_latest(state) == 1
    return {"load_s": time.perf_counter() - began_s, "source": saver.resumed.source if saver.resumed else ""}


def child(*arguments: str, env: dict[str, str]) -> dict[str, Any]:
    """Run this program for a part of the work."""
    command = [sys.executable, __file__, *arguments]
    full = {**os.environ, "STALL_MARK": str(time.time_ns()), **env}
    done = subprocess.run(command, env=full, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{arguments}: {done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def folders(where: Path) -> Iterator[Path]:
    """One empty folder after the other, each gone when the next one comes."""
    while True:
        with tempfile.TemporaryDirectory(prefix="srobust-stall-", dir=where, ignore_cleanup_errors=True) as folder:
            yield Path(folder)


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="one object of named figures")
    parser.add_argument("--quick", action="store_true", help="a small state, two saves: only shows that it works")
    parser.add_argument("--gib", default="0.5,2", help="sizes of the state")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=None, help="where checkpoints go; a temporary folder by default")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--seed-memory", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        way, gib, repeats, folder = args.one
        print(json.dumps(one(way, float(gib), int(repeats), Path(folder))))
        os._exit(0)  # DCP's helpers are not waited for
    if args.load or args.seed_memory:
        gib, folder = args.load or args.seed_memory
        print(json.dumps(load(float(gib), Path(folder), first=bool(args.seed_memory))))
        return
    sizes = [0.02] if args.quick else [float(size) for size in args.gib.split(",")]
    measure(args, sizes)


def measure(args: argparse.Namespace, sizes: list[float]) -> None:
    """All ways, all sizes."""
    report = Report("checkpoint_stall", args.quick, machine=machine())
    report.notes = [
        "Tensors on the CPU: nothing here covers a GPU's copy.",
        "One rank, one thread. The disk is this machine's; files are read back from the page cache.",
        "torch.save and DCP do not flush, read back or digest what they wrote; ours does.",
    ]
    repeats = 2 if args.quick else args.repeats
    fresh = folders(args.folder or Path(tempfile.gettempdir()))
    rows = []
    for gib in sizes:
        found = {way: child("--one", way, str(gib), str(repeats), str(next(fresh)), env={}) for way in WAYS}
        medians = {way: spread(told["stall_s"]).median for way, told in found.items()}  # type: ignore[union-attr]
        for way, told in found.items():
            extra = told["extra_bytes"] / told["state_bytes"]
            key = f"{gib:g}_gib/{way}"
            figures = {
                "stall_s": spread(told["stall_s"]),
                "written_s": spread(told["written_s"]),
                "extra_states": extra,
            }
            report.figures[key] = figures
            ratio = medians[way] / medians[COPY]
            rows.append(
                (f"{gib:g} GiB: {way}", figures["stall_s"], f"{ratio:.1f}", figures["written_s"], f"{extra:.1f}")
            )
        best = min(medians[way] for way in ASYNC)
        report.targets += [
            Target(f"stall, {gib:g} GiB, against a copy", STALL_RATIO, "", medians[OURS] / medians[COPY]),
            Target(f"stall, {gib:g} GiB, against DCP's best async_save", DCP_RATIO, "", medians[OURS] / best),
        ]
        report.figures[f"{gib:g}_gib/restart"] = restarts(gib, next(fresh))
    fresh.close()  # type: ignore[attr-defined]
    if args.json:
        print(report.to_json())
        return
    console = Console()
    report.show(console)
    columns = ("way", "stall, s", "copies", "on the disk after, s", "extra memory, states")
    show_table(console, "Median (least – most)", columns, rows)
    for gib in sizes:
        console.print(f"restart of {gib:g} GiB: {report.figures[f'{gib:g}_gib/restart']}")


if __name__ == "__main__":
    main()
