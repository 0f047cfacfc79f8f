"""The leaf switches of topology.conf: which nodes are neighbours."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from slurm_robust.slurm.errors import SlurmParseError
from slurm_robust.slurm.values import expand

_NODES = re.compile(r"(?:^|\s)Nodes=(\S+)", re.IGNORECASE)


def leaf_switches(text: str) -> tuple[tuple[str, ...], ...]:
    """The nodes of each line with `SwitchName` or `BlockName` and `Nodes`, in the file's order; others are left out."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        match = _NODES.search(line.partition("#")[0])
        if match is None:
            continue
        try:
            found.append(expand(match[1]))
        except SlurmParseError:
            continue  # a line that only Slurm understands: these nodes keep the order of their names
    return tuple(found)


def shared(names: Collection[str], switches: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The nodes of the one leaf switch that all of these are connected to; none where there is no such."""
    return next((nodes for nodes in switches if set(names) <= set(nodes)), ())


def read(slurm_conf: str) -> tuple[tuple[str, ...], ...]:
    """Those of the topology.conf beside this slurm.conf, empty for Slurm's own; none where it cannot be read."""
    conf = slurm_conf or os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf")
    try:
        return leaf_switches(Path(conf).with_name("topology.conf").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ()
