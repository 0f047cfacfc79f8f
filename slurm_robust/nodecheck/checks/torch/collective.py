"""Can the node's GPUs sum up together, and do they come to the right sum?"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.checks.torch import collective_rank
from slurm_robust.nodecheck.checks.torch import devices as torch_devices

_CPU_RANKS = 2
_DEADLINE_S = 120.0


def _await(ranks: dict[str, subprocess.Popen[str]], end_s: float) -> list[dict[str, Any]]:
    """Return what each rank said before `end_s`; all ranks are ended."""
    said = []
    try:
        for device, rank in ranks.items():
            entry: dict[str, Any] = {"rank": device}
            try:
                out, err = rank.communicate(timeout=max(0.1, end_s - time.monotonic()))
                state, *figures = out.split() or [""]
                entry |= {"code": rank.returncode, "state": state, "wrong": int(figures[0]) if figures else 0}
                entry["error"] = "" if state else (err.strip().splitlines() or ["nothing was said"])[-1][:200]
            except subprocess.TimeoutExpired:
                entry |= {"code": None, "state": "", "wrong": 0, "error": "no answer in time"}
            said.append(entry)
    finally:
        for rank in ranks.values():
            with contextlib.suppress(OSError):
                rank.kill()
    return said


def probe(context: Context, options: Options) -> Facts:
    """Start a rank for each GPU (two on the CPU) that meet over a file of their own, and sum up three times."""
    if why := torch_devices.absent(context):
        return {"absent": why}
    import torch  # noqa: PLC0415 (seconds, and only here)

    devices = torch_devices.devices(torch)
    if devices == ["cpu"]:
        devices = ["cpu"] * _CPU_RANKS
    elif len(devices) == 1:
        return {"absent": "there is one GPU only"}
    # Nothing of a surrounding job's rendezvous; on one node the loopback is enough for gloo.
    gone = ("MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_", "NCCL_SOCKET", "GLOO_", "SLURM_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(gone)} | {"GLOO_SOCKET_IFNAME": "lo"}
    seconds = options["limit_s"]
    ranks: dict[str, subprocess.Popen[str]] = {}
    with tempfile.TemporaryDirectory(prefix="srobust-collective-") as folder:
        end_s = time.monotonic() + seconds
        for index, device in enumerate(devices):
            words = [index, len(devices), Path(folder) / "meet", device, seconds, options["elements"]]
            argv = [sys.executable, collective_rank.__file__, *map(str, words)]
            ranks[f"{index} on {device}"] = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        return {"ranks": _await(ranks, end_s), "backend": "gloo" if devices[0] == "cpu" else "nccl"}


def judge(facts: Facts, options: Options) -> Finding:
    """Fail for a wrong sum; ranks that did not come to a sum are unknown: that may be the software's fault."""
    if "absent" in facts:
        return torch_devices.skipped(facts)
    ranks = facts["ranks"]
    wrong = [rank["rank"] for rank in ranks if rank["wrong"]]
    if wrong:
        sentence = f"an all-reduce came to a wrong sum on rank {', '.join(wrong)}"
        remedy = "drain; look at NVLink and PCIe errors; run `srobust check --only collective,matmul` again"
        return Finding.fail("wrong_sum", sentence, remedy, facts)
    lost = [rank for rank in ranks if rank["state"] != "ok"]
    if lost:
        sentence = f"{len(lost)} of {len(ranks)} ranks came to no sum ({facts['backend']}): {lost[0]['error']}"
        remedy = "run it again with NCCL_DEBUG=INFO; look for a hung GPU with `nvidia-smi`"
        return Finding.unknown("no_sum", sentence, remedy, facts)
    return Finding.passed("sum_right", f"{len(ranks)} ranks came to the right sum ({facts['backend']})", facts)


check = Check(
    **Check.parts_of(__name__),
    reads="torch.distributed: an all-reduce among the GPUs over NCCL, or of two processes over gloo without any",
    cost="seconds: a process a GPU, each loads torch",
    lane=torch_devices.LANE,
    deadline_s=_DEADLINE_S,
    options={
        "elements": Option(4_000_000, "numbers that each rank adds", "ours: a gradient bucket of 16 MB"),
        "limit_s": Option(100, "seconds for all ranks together", "ours: NCCL takes tens of seconds on a busy node"),
    },
)
