"""Steps in the shape of the job: real gloo ranks compare all that comes from the others with what must come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import quick_torch

from slurm_robust.stoptime.shape_rank import KINDS

pytest.importorskip("torch")
FAULTS = {"": None, "all_reduce": "tp", "recv": "pp", "all_to_all_single": "ep"}
"""What changes one number that comes from another rank → the kind of parallelism that finds it."""
RANK = """
import json, sys
import torch
import torch.distributed as dist
from slurm_robust.stoptime.shape_rank import ShapeRank, run
rank, world = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=world)
for fault in json.loads(sys.argv[4]):
    plain = getattr(dist, fault, None)
    def broken(found, *given, **more):
        plain(found, *given, **more)
        found.view(-1)[7] += 1
    if fault and rank == world - 1:
        setattr(dist, fault, broken)
    print(json.dumps(run(ShapeRank(torch, dist, rank, world, "cpu"), ("tp", "pp", "ep"))), flush=True)
    if fault:
        setattr(dist, fault, plain)
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.variant)])
def test_one_wrong_number_on_the_way_is_found_by_its_kind_alone(tmp_path: Path, world: int) -> None:
    """Healthy ranks have all bits right; the one that receives another number says in which step."""
    env = os.environ | {"PYTHONPATH": f"{quick_torch()}:{Path.cwd()}", "GLOO_SOCKET_IFNAME": "lo"}
    argv = [str(world), str(tmp_path / "store"), json.dumps(list(FAULTS))]
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), *argv], stdout=subprocess.PIPE, text=True, env=env)
        for rank in range(world)
    ]
    said = [[json.loads(line) for line in rank.communicate(timeout=100)[0].splitlines()] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world
    for number, kind in enumerate(FAULTS.values()):
        at_last = {name for name, count in said[-1][number].items() if count}
        assert at_last == ({KINDS[kind]} if kind else set()), number
        assert set(said[0][number]) == set(KINDS.values())
        if kind in (None, "tp"):  # others are sent nothing that comes of it
            assert not any(count for rank in said[:-1] for count in rank[number].values()), number
