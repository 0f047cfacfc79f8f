"""Parses which GPUs a job was given on each of its nodes, out of `scontrol -d -o show job`: pure.

A job's own texts stand in the same line. The job's name stands before Slurm's words about the nodes; since the caller
knows the name, exactly that name is taken out. Other texts that a user may write there (an account, if the site does
not check it) or behind it (comment, folders) can name only the job's own nodes: they can add a GPU, but cannot hide
one.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from slurm_robust.slurm.errors import SlurmParseError
from slurm_robust.slurm.values import count, expand

_NODES = re.compile(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_GPU_NUMBERS = re.compile(r"gpu(?::[^(),:]*)*\(IDX:([0-9,-]{1,400})\)")
_NEXT = re.compile(" [A-Za-z]+=")
"""Behind the name: `UserId`, from Slurm 25.11 on `SLUID`."""
MAX_GPU_NUMBER = 9999
MAX_REPEATS = 64
"""The number of times that each node may be named; Slurm names it once, but a job's text may name it often."""


def parse(text: str, name: str, own: Collection[str]) -> dict[str, frozenset[int]]:
    """Read the GPUs by node: `Nodes=n[2-3] CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:0-1)`.

    A node on which the job has no generic resources has an empty set. A node is left out if the job has some on it, but
    Slurm does not name a GPU by its number.

    Args:
        text: The output of scontrol.
        name: The job's name, from another answer of Slurm's.
        own: The job's own nodes, from the same answer as its name.

    Raises:
        SlurmParseError: the job does not have this name (any more).
    """
    head, _, rest = text.partition(" JobName=")
    behind = rest[len(name) :]
    if not head.startswith("JobId=") or not rest.startswith(name) or not _NEXT.match(behind):
        raise SlurmParseError("scontrol's answer is about a job of another name", text[:80])
    found: dict[str, frozenset[int]] = {}
    unnamed: set[str] = set()
    wanted = frozenset(own)
    left = MAX_REPEATS * len(own)
    for nodes, gres in _NODES.findall(behind):
        numbers = {n for ranges in _GPU_NUMBERS.findall(gres) for n in _numbers(ranges)}
        try:
            size = count(nodes)
            if size > min(left, len(own)):
                continue  # more than the job has
            left -= size
            names = [node for node in expand(nodes, remember=False) if node in wanted]
        except SlurmParseError:
            continue  # no list of Slurm's: a text of the job's
        unnamed |= set(names) if gres and not numbers else set()
        found |= {node: found.get(node, frozenset()) | numbers for node in names}
    return {node: numbers for node, numbers in found.items() if numbers or node not in unnamed}


def _numbers(ranges: str) -> set[int]:
    """Return the numbers of `0-3,5`; a part that makes no sense is left out."""
    found: set[int] = set()
    for piece in ranges.split(","):
        first, _, last = piece.partition("-")
        if first.isdigit() and (last or first).isdigit() and int(first) <= int(last or first) <= MAX_GPU_NUMBER:
            found.update(range(int(first), int(last or first) + 1))
    return found
