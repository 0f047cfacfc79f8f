"""Breaks the ranks of a stop-time test on some nodes: FAULTY_RANKS is JSON, `{"n3": "bit"}` or `{"n1,n2": "corrupt"}`.

Each Python that has this folder on PYTHONPATH loads this file at its start. The fault is put in when a rank is forked,
and into a rank of the reference replay at once.
Faults of a node: `bit` (one wrong bit in one product), `segfault`, `hang` (in the pairs). Faults of a link: `corrupt`
(received numbers), `slow`. `no_torch` hides PyTorch. Members of a pair know each other by files in FAULTY_RANKS_FOLDER.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

exec((Path(__file__).parents[2] / "quick_torch" / "sitecustomize.py").read_text())

NODE = os.environ.get("SLURMD_NODENAME", "")
FAULTS = {
    frozenset(nodes.split(",")): fault for nodes, fault in json.loads(os.environ.get("FAULTY_RANKS", "{}")).items()
}
OWN = FAULTS.get(frozenset([NODE]), "")


def _bit(torch):
    plain = torch.nn.functional.linear

    def off_by_a_bit(*given):
        result = plain(*given)
        result.data.view(-1)[7:8].view(torch.int32).bitwise_xor_(1)
        return result

    torch.nn.functional.linear = off_by_a_bit


def _links(torch, pair_rank):
    run, gather = pair_rank.run, torch.distributed.all_gather
    members = set()

    def told(spec):
        folder = Path(os.environ["FAULTY_RANKS_FOLDER"]) / str(spec["port"])
        folder.mkdir(exist_ok=True)
        (folder / NODE).touch()
        if OWN == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        while OWN == "hang":
            time.sleep(1)
        members.add(folder)
        return run(spec)

    def faulty(parts, mine):
        gather(parts, mine)
        here = frozenset(path.name for path in next(iter(members)).iterdir())
        fault = next((fault for nodes, fault in FAULTS.items() if len(nodes) == 2 and nodes <= here), "")
        if fault == "corrupt":
            parts[0][5] += 1
        elif fault == "slow":
            time.sleep(0.5)

    pair_rank.run = told
    torch.distributed.all_gather = faulty


def _break():
    server = sys.modules.get("slurm_robust.stoptime.rank_server")
    if server is None:
        return
    torch = sys.modules["torch"]
    if OWN == "bit":
        _bit(torch)
    _links(torch, server.pair_rank)
    server.WORK["pair"] = server.pair_rank.run


if OWN == "bit" and any("reference_replay" in word for word in sys.orig_argv):
    import torch

    _bit(torch)
if FAULTS:
    os.register_at_fork(after_in_child=_break)
if OWN == "no_torch":
    sys.modules["torch"] = None
