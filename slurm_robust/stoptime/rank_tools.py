"""Holds code that the ranks of the tests share: joining a process group, and timing work. Needs PyTorch only."""

from __future__ import annotations

import datetime as dt
import hmac
import time
from collections.abc import Callable
from typing import Any

from slurm_robust.stoptime.rank_meeting import MeetingConnections, NotJoinedError, alone, proof, store

_MEET_SHARE = 0.8
"""Share of the limit for meeting: if a rank does not come, time is left to report it."""
_PROOF_BYTES, _END_BYTES = 32, 48
_PIECE_BYTES = 144
"""Of the ends, with a proof each: a link that spoils most long messages is to fail at the test's numbers, not here."""


def join_group(dist: Any, spec: dict[str, Any], host: str) -> None:
    """Join the process group of a test: NCCL between GPUs, else gloo.

    Args:
        dist: `torch.distributed`.
        spec: `device`, `rank`, `world`, `port` of the first rank, `secret`, `limit_s`, and `mark`: called when this
            rank begins to join, and when all members have proven themselves. A failure in between is not blamed on a
            node.
        host: The host of the first rank.

    Raises:
        NotJoinedError: not all ranks have come, or a stranger has.
    """
    spec["mark"]()
    limit_s, connections = _MEET_SHARE * spec["limit_s"], MeetingConnections()
    end_s = time.monotonic() + limit_s
    met = store(dist, spec, host, limit_s)
    shared = alone(dist, spec, met, connections.ends()[0], end_s)
    on_cpu = spec["device"] == "cpu"
    if not on_cpu:
        # NCCL's connections carry a number that only members read in the store. That they fail is a node's fault.
        spec["mark"]()
    dist.init_process_group(
        "gloo" if on_cpu else "nccl",
        store=shared,
        rank=spec["rank"],
        world_size=spec["world"],
        timeout=dt.timedelta(seconds=spec["limit_s"]),
    )
    if on_cpu:
        _prove_each_connection(dist, spec, connections, met[1])
        spec["mark"]()


def _prove_each_connection(dist: Any, spec: dict[str, Any], connections: MeetingConnections, at: str) -> None:
    """Check on each of gloo's connections that its other end is the rank that it claims to be: gloo does not check.

    A stranger between two ranks could pass their proofs on, if it had changed their addresses in the store. So each
    rank tells its own ends of connections, signed, and checks that it is only connected to ends that the others have
    told.
    """
    import torch  # noqa: PLC0415 (loaded by the caller)

    others = [rank for rank in range(spec["world"]) if rank != spec["rank"]]
    own, opened = connections.ends()
    pieces = -(-_END_BYTES * (spec["world"] + 8) // _PIECE_BYTES)
    told = " ".join(sorted(own)).encode()[: pieces * _PIECE_BYTES].ljust(pieces * _PIECE_BYTES)

    def message(source: int, target: int, number: int, ends: bytes) -> bytes:
        return proof(spec["secret"], "gloo", source, target, number, ends) + ends

    def sent(other: int, number: int) -> Any:
        piece = told[number * _PIECE_BYTES : (number + 1) * _PIECE_BYTES]
        return torch.tensor(list(message(spec["rank"], other, number, piece)), dtype=torch.uint8)

    under_way = [dist.isend(sent(other, number), dst=other) for other in others for number in range(pieces)]
    members = {at}
    for other in others:
        ends = b""
        for number in range(pieces):
            given = torch.zeros(_PROOF_BYTES + _PIECE_BYTES, dtype=torch.uint8)
            dist.recv(given, src=other)
            heard = bytes(given.tolist())
            if not hmac.compare_digest(heard, message(other, spec["rank"], number, heard[_PROOF_BYTES:])):
                raise NotJoinedError(f"who is connected as rank {other} does not know the secret of the test")
            ends += heard[_PROOF_BYTES:]
        members.update(ends.decode().split())
    for one in under_way:
        one.wait()
    if strange := opened - members:
        raise NotJoinedError(f"{min(strange)} is connected in the place of a rank")


def timed(torch: Any, device: str, work: Callable[[], Any]) -> float:
    """Return how long the work takes on the device, in seconds; never 0."""
    if device != "cpu":
        torch.cuda.synchronize()
    began_s = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return max(time.perf_counter() - began_s, 1e-9)
