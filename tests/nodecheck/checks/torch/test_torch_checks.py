"""The checks that compute: judged from facts, and run for real on this machine's CPU."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.nodecheck.checks.torch import devices as torch_devices
from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Finding, Status

P, W, F, U, S = Status.PASS, Status.WARN, Status.FAIL, Status.UNKNOWN, Status.SKIP
H100 = "NVIDIA H100 80GB HBM3, 132 SMs, 9.0"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")


def judged(name: str, facts: dict[str, Any], **options: Any) -> Finding:
    """What a check makes of facts, which came through JSON."""
    check = registry.get(name)
    return check.judge(json.loads(json.dumps(facts)), check.settings(options))


def gpu(index: int, *, wrong: int = 0, sums: tuple[int, ...] = (7, 7, 7), model: str = H100) -> dict[str, Any]:
    """What was computed on one GPU."""
    return {"device": f"cuda:{index}", "model": model, "wrong_rows": wrong, "sums": list(sums), "gflops": 1.0}


EIGHT = [gpu(i) for i in range(8)]


@pytest.mark.parametrize(
    ("devices", "errors", "status", "reason", "words"),
    [
        (EIGHT, {}, P, "products_right", "cuda:7"),
        ([*EIGHT[:7], gpu(7, wrong=1)], {}, F, "wrong_product", "cuda:7 computes wrong"),
        ([*EIGHT[:7], gpu(7, sums=(7, 8, 7))], {}, F, "not_repeatable", "cuda:7"),
        ([*EIGHT[:7], gpu(7, sums=(9, 9, 9))], {}, F, "unlike_sisters", "cuda:7"),
        ([gpu(0), gpu(1, sums=(9, 9, 9))], {}, W, "sisters_differ", "cuda:0, cuda:1"),
        ([gpu(0), gpu(1, sums=(9, 9, 9), model="L40S")], {}, P, "products_right", ""),
        (EIGHT[:7], {"cuda:7": "CUDA out of memory"}, U, "not_computed", "out of memory"),
        ([*EIGHT[:6], gpu(6, wrong=1)], {"cuda:7": "no"}, F, "wrong_product", "cuda:6"),
    ],
)
def test_matmul(devices: list[Any], errors: dict[str, str], status: Status, reason: str, words: str) -> None:
    """Wrong, unsteady, or alone against its sisters: unfit. One against one, or no memory: no verdict."""
    found = judged("matmul", {"devices": devices, "errors": errors})
    assert (found.status, found.reason) == (status, reason)
    assert words in found.sentence


def rates(h2d: list[float]) -> dict[str, Any]:
    """Copies of as many GPUs."""
    same = {f"cuda:{i}": 50.0 for i in range(len(h2d))}
    return {"rates": {"h2d": {f"cuda:{i}": r for i, r in enumerate(h2d)}, "d2h": same, "d2d": {}}}


@pytest.mark.parametrize(
    ("h2d", "options", "status", "reason"),
    [
        ([50.0] * 8, {}, P, "copies_fast"),
        ([50.0] * 8, {"h2d_min_gb_per_s": 40.0}, P, "copies_fast"),
        ([50.0] * 7 + [39.0], {"h2d_min_gb_per_s": 40.0}, F, "slow_copies"),
        ([50.0] * 7 + [20.0], {}, W, "slower_than_sisters"),
        ([50.0] * 7 + [30.0], {}, P, "copies_fast"),  # another NUMA node
        ([50.0, 20.0], {}, P, "copies_fast"),  # two have no majority
    ],
)
def test_bandwidth(h2d: list[float], options: dict[str, float], status: Status, reason: str) -> None:
    """Only a site's own minimum makes a node unfit; half of the sisters' rate warns."""
    found = judged("bandwidth", rates(h2d), **options)
    assert (found.status, found.reason) == (status, reason)


@pytest.mark.parametrize(
    ("rank", "status", "reason"),
    [
        ({"code": 0, "state": "ok", "wrong": 0, "error": ""}, P, "sum_right"),
        ({"code": 1, "state": "wrong", "wrong": 3, "error": ""}, F, "wrong_sum"),
        ({"code": None, "state": "", "wrong": 0, "error": "no answer in time"}, U, "no_sum"),
        ({"code": 1, "state": "", "wrong": 0, "error": "RuntimeError: NCCL"}, U, "no_sum"),
    ],
)
def test_collective(rank: dict[str, Any], status: Status, reason: str) -> None:
    """A wrong sum is the node's; one that does not come may be anything's."""
    good = {"rank": "0 on cuda:0", "code": 0, "state": "ok", "wrong": 0, "error": ""}
    found = judged("collective", {"ranks": [good, {"rank": "1 on cuda:1", **rank}], "backend": "nccl"})
    assert (found.status, found.reason) == (status, reason)


@pytest.mark.parametrize("name", ["matmul", "bandwidth", "collective"])
def test_without_torch_or_on_a_saved_tree_there_is_nothing_to_compute(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skipped, with the reason; never in a prolog."""
    check = registry.get(name)
    assert check.stages == ("full",)
    here = Context("n1")
    for context, words in ((replace(here, root=tmp_path), "another machine"), (here, "not installed")):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        facts = check.probe(context, check.settings({}))
        found = check.judge(facts, check.settings({}))
        assert found.status is S
        assert words in found.sentence


COMPUTE = """
from slurm_robust.nodecheck.engine import registry, runner
from slurm_robust.nodecheck.engine.context import Context
checks = [registry.get(name) for name in ("matmul", "bandwidth", "collective")]
options = {"matmul": {"size": 64, "repeats": 2}, "collective": {"elements": 1000}}
report = runner.run(checks, Context("n1"), options, 170.0)
print(*(f"{result.name} {result.finding.reason} {result.finding.status.name}" for result in report.results), sep="\\n")
"""


@needs_torch
def test_on_this_machine_all_of_them_are_content() -> None:
    """A healthy machine without a GPU: products are right, two processes come to the right sum, nothing is copied.

    In a process of its own, as in life: one that was forked after torch has computed hangs when it computes.
    """
    said = subprocess.run([sys.executable, "-c", COMPUTE], stdout=subprocess.PIPE, text=True, check=True).stdout
    matmul, bandwidth, collective = said.splitlines()
    assert (matmul, collective) == ("matmul products_right PASS", "collective sum_right PASS")
    assert bandwidth.endswith((" PASS", " SKIP")), said


@needs_torch
def test_one_flipped_bit_shows() -> None:
    """In the sum of a row, and in the checksum; two values changed for each other, too."""
    torch = importlib.import_module("torch")

    left, right = torch_devices.matrices(torch, 64)
    wanted = left @ (right @ torch.ones(64, dtype=torch.int64))
    product = left.float() @ right.float()
    assert int((product.to(torch.int64).sum(dim=1) != wanted).sum()) == 0
    assert float(product.abs().max()) < 2**24
    before = torch_devices.checksum(torch, product)
    assert before == torch_devices.checksum(torch, product.clone())
    product[3, 5] += 1
    assert torch_devices.checksum(torch, product) != before
    assert int((product.to(torch.int64).sum(dim=1) != wanted).sum()) == 1
    swapped = left.float() @ right.float()
    swapped[0] = swapped[0].roll(1)
    assert torch_devices.checksum(torch, swapped) != before
