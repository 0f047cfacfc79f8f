"""The reference step gives the same bits each time, and one changed bit changes the digest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import quick_torch

pytest.importorskip("torch")

PROGRAM = """
import json, sys
from slurm_robust.stoptime import reference_step
import torch
first = reference_step.run("cpu", 2)
plain = torch.nn.functional.linear
calls = 0
def off_by_a_bit(*given):
    global calls
    calls += 1
    result = plain(*given)
    if calls == 3:
        result.data.view(-1)[7:8].view(torch.int32).bitwise_xor_(1)
    return result
torch.nn.functional.linear = off_by_a_bit
print(json.dumps([first, reference_step.run("cpu", 2)]))
"""


def test_one_bit_in_one_call_changes_the_digest() -> None:
    """Two processes come to the same bits; a single low bit of a single product, once, is seen in that step alone."""
    env = os.environ | {"PYTHONPATH": quick_torch(Path.cwd())}
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, check=True).stdout)
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    healthy, faulty = runs[0]
    assert healthy["digests"][0] == healthy["digests"][1]
    assert faulty["digests"][0] != healthy["digests"][0]
    assert faulty["digests"][1] == healthy["digests"][0]
    assert "torch" in healthy["hardware"]
