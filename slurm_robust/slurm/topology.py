"""Reads the leaf switches of topology.conf: which nodes are neighbours."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from slurm_robust.slurm.errors import SlurmParseError
from slurm_robust.slurm.values import expand

_NODES = re.compile(r"(?:^|\s)Nodes=(\S+)", re.IGNORECASE)
_NAME = re.compile(r"(?:^|\s)(?:SwitchName|BlockName)=(\S+)", re.IGNORECASE)


def named_leaves(text: str) -> dict[str, tuple[str, ...]]:
    """Return the nodes of each line with `SwitchName` or `BlockName` and `Nodes`, in order; others are left out."""
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        plain = line.partition("#")[0]
        match, name = _NODES.search(plain), _NAME.search(plain)
        if match is None:
            continue
        try:
            found[name[1] if name else f"of {match[1]}"] = expand(match[1])
        except SlurmParseError:
            continue  # a line that only Slurm understands: these nodes keep the order of their names
    return found


def shared(names: Collection[str], switches: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the nodes of the one leaf switch that connects all these nodes; empty if there is no such switch."""
    return next((nodes for nodes in switches if set(names) <= set(nodes)), ())


def read(slurm_conf: str) -> tuple[tuple[str, ...], ...]:
    """Return the switches of the topology.conf beside this slurm.conf (empty: Slurm's own); () if it cannot be read."""
    return tuple(read_named(slurm_conf).values())


def read_named(slurm_conf: str) -> dict[str, tuple[str, ...]]:
    """Read the switches of topology.conf as `read` does, by the switches' names."""
    conf = slurm_conf or os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf")
    try:
        return named_leaves(Path(conf).with_name("topology.conf").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}
