"""How many GPUs slurm.conf gives a node (`Gres=gpu:…` of its NodeName line). Pure."""

from __future__ import annotations

import re

from slurm_robust.nodecheck.sources import node_line

_BOUND = re.compile(r"\([^)]*\)")
_COUNT = re.compile(r"gpu(?::[A-Za-z][\w.-]*)?(?::no_consume)?(?::(\d{1,4}))?\Z")


def gpus(text: str, node: str) -> int:
    """GPUs of this node; 0 where the text does not say, or not as a plain number (shares, instances, thousands)."""
    return count(node_line.settings(text, node).get("gres", ""))


def count(gres: str) -> int:
    """GPUs of a `Gres` value: `gpu:h100:4(S:0),gpu:h100:4,nic:2` is 8; 0 where a part of it is of another shape."""
    found = 0
    for part in _BOUND.sub("", gres.strip("\"'")).split(","):
        if part.split(":")[0] == "gpu":
            match = _COUNT.match(part)
            if match is None:
                return 0
            found += int(match[1] or 1)
    return found
