"""Flight-recorder dumps made for tests: the containers that PyTorch writes, of invented jobs."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_robust.localize.recorder.dump import RankDump, read_dump

WORLD, TENSOR = "0", "7"


def entry(
    order: int,
    seq: int,
    name: str = "all_reduce",
    *,
    group: str = WORLD,
    number: int = 0,
    state: str = "scheduled",
    sizes: Sequence[Sequence[int]] = ((4,),),
    backend: str = "nccl",
) -> dict[str, Any]:
    """One entry as PyTorch's recorder keeps it."""
    pair = name.startswith(("send", "recv"))
    return {
        "record_id": order,
        "pg_id": number,
        "process_group": (group, "a group"),
        "collective_seq_id": 0 if pair else seq,
        "p2p_seq_id": seq if pair else 0,
        "profiling_name": f"{backend}:{name}",
        "time_created_ns": 1_700_000_000_000_000_000 + order,
        "input_sizes": [list(s) for s in sizes],
        "input_dtypes": ["Float"],
        "output_sizes": [list(s) for s in sizes],
        "output_dtypes": ["Float"],
        "state": state,
        "retired": False,
    }


def plain(
    entries: Sequence[Mapping[str, Any]],
    counters: Mapping[int, tuple[int, int]],
    groups: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """A whole dump, before it is written."""
    return {
        "version": "2.10",
        "pg_config": {n: {"name": n, "desc": f"group_{n}", "ranks": str(list(r))} for n, r in groups.items()},
        "pg_status": {
            str(n): {"last_enqueued_collective": e, "last_started_collective": -1, "last_completed_collective": c}
            for n, (e, c) in counters.items()
        },
        "entries": list(entries),
    }


def dump(
    rank: int,
    entries: Sequence[Mapping[str, Any]],
    counters: Mapping[int, tuple[int, int]],
    groups: Mapping[str, Sequence[int]],
) -> RankDump:
    """A rank's dump, written as a pickle and read again."""
    return read_dump(pickle.dumps(plain(entries, counters, groups)), rank)
