"""What slurm.conf says of a node: its NodeName line, with the defaults that stand before it. Pure."""

from __future__ import annotations

import re

from slurm_robust.slurm.errors import SlurmParseError
from slurm_robust.slurm.values import expand

_NODE = re.compile(r"\s*NodeName\s*=\s*(\S+)", re.IGNORECASE)
_PAIR = re.compile(r"\s([A-Za-z]{2,40})\s*=\s*(\S+)")
_NUMBER = re.compile(r"[0-9]{1,9}\Z")
_OVERRIDES = re.compile(r"^\s*SlurmdParameters\s*=\S*\bconfig_overrides\b", re.IGNORECASE | re.MULTILINE)


def settings(text: str, node: str) -> dict[str, str]:
    """The node's settings by lower-case name; empty where the text does not name it."""
    usual: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        plain = line.partition("#")[0]
        head = _NODE.match(plain)
        if head is None:
            continue
        said = {name.lower(): value for name, value in _PAIR.findall(plain[head.end() :])}
        if head[1].upper() == "DEFAULT":
            usual.update(said)
        elif _has(head[1], node):
            return {**usual, **said}
    return {}


def cpus(text: str, node: str) -> int:
    """CPUs (threads) of the node; 0 where the text does not say, or where Slurm does not hold the node to it."""
    said = {} if _OVERRIDES.search(text) else settings(text, node)
    if "cpus" in said or "procs" in said:
        return _number(said.get("cpus", said.get("procs", "")))
    sockets = _number(said.get("sockets", ""))
    sockets = sockets or _number(said.get("socketsperboard", "")) * _number(said.get("boards", "1"))
    return sockets * _number(said.get("corespersocket", "1")) * _number(said.get("threadspercore", "1"))


def memory_mb(text: str, node: str) -> int:
    """RealMemory of the node in MiB; 0 as in `cpus`."""
    return 0 if _OVERRIDES.search(text) else _number(settings(text, node).get("realmemory", ""))


def _number(value: str) -> int:
    return int(value) if _NUMBER.match(value) else 0


def _has(nodes: str, node: str) -> bool:
    try:
        return node in expand(nodes)
    except SlurmParseError:
        return False
