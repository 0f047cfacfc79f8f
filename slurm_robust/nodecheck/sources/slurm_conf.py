"""Reads what slurm.conf says about this node: its CPUs, memory and GPUs, and which controllers it has."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping

from slurm_robust.nodecheck import state_folder
from slurm_robust.nodecheck.engine.choices import need_packages
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import small_files
from slurm_robust.wire import plain_file

_PATHS = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    # The place of the files that slurmd was sent: "configless".
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
)
_MAX_BYTES = 1 << 20
_MAX_HOSTS = 8
_PORT = 6817  # slurm.conf(5)
_ANY_PAIR = re.compile(r"([A-Za-z]+)\s*=\s*([^\s#]+)")
_BOUND = re.compile(r"\([^)]*\)")
_COUNT = re.compile(r"gpu(?::[A-Za-z][\w.-]*)?(?::no_consume)?(?::(\d{1,4}))?\Z")
_NODE = re.compile(r"\s*NodeName\s*=\s*(\S+)", re.IGNORECASE)
_PAIR = re.compile(r"\s([A-Za-z]{2,40})\s*=\s*(\S+)")
_NUMBER = re.compile(r"[0-9]{1,9}\Z")
_OVERRIDES = re.compile(r"^\s*SlurmdParameters\s*=\S*\bconfig_overrides\b", re.IGNORECASE | re.MULTILINE)


def read(context: Context, named: str, env: Mapping[str, str]) -> str:
    """Return the text of slurm.conf: of the file that the site names, of `SLURM_CONF`, or of a usual place.

    Users influence the environment: `SLURM_CONF` counts only if it names a plain file, no link, that root or this user
    owns and that others cannot write or replace.
    """
    if named:
        return small_files.read_text(context.path(named), _MAX_BYTES)
    if context.real_root and (text := _own(env.get("SLURM_CONF", ""))):
        return text
    return next((text for path in _PATHS if (text := small_files.read_text(context.path(path), _MAX_BYTES))), "")


def _own(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        return ""
    try:
        fd = plain_file.open_plain(path)
    except OSError:
        return ""
    try:
        info = os.fstat(fd)
        mine = info.st_uid in {0, os.geteuid()} and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        mine = mine and not state_folder.foreign_place(path, state_folder.is_ours)
        return os.read(fd, _MAX_BYTES).decode("utf-8", "replace") if mine else ""
    except OSError:
        return ""
    finally:
        os.close(fd)


def declared(context: Context, count: Callable[[str, str], int]) -> int:
    """Return slurm.conf's number for this node; 0 before and after a job, since each millisecond delays the job."""
    if context.stage not in ("periodic", "full"):
        return 0
    return count(read(context, "", os.environ), context.node)


def controllers(text: str) -> tuple[list[str], int]:
    """Return the controllers' names or addresses in slurm.conf, and the first of their ports.

    `SlurmctldHost=ctl1(10.0.0.1)` and the older `ControlMachine` with `ControlAddr` give an address: then no name is
    looked up. Anything not shaped like a host's name is ignored.
    """
    from slurm_robust.nodecheck.sources import host_names  # noqa: PLC0415 (it loads sockets, which no prolog needs)

    hosts: list[str] = []
    old: dict[str, str] = {}
    port = _PORT
    for line in text.splitlines():
        for key, value in _ANY_PAIR.findall(line.partition("#")[0]):
            word = key.lower()
            if word == "slurmctldhost":
                name, _, address = value.partition("(")
                hosts.append((address.rstrip(")") or name) if host_names.is_host(name) else "")
            elif word in ("controlmachine", "controladdr", "backupcontroller", "backupaddr"):
                old[word] = value
            elif word == "slurmctldport" and (match := re.match(r"\d{1,5}", value)) and 0 < int(match[0]) < 65536:
                port = int(match[0])
    if not hosts:
        hosts = [old.get("controladdr") or old.get("controlmachine", "")]
        hosts.append(old.get("backupaddr") or old.get("backupcontroller", ""))
    return list(dict.fromkeys(host for host in hosts if host_names.is_host(host)))[:_MAX_HOSTS], port


def settings(text: str, node: str) -> dict[str, str]:
    """Return the node's settings by lower-case name; empty if the text does not name it."""
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
    """CPUs (threads) of the node; 0 if the text does not say, or where Slurm does not hold the node to it."""
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
    need_packages()
    from slurm_robust.slurm.errors import SlurmParseError  # noqa: PLC0415 (only the probe's own process loads it)
    from slurm_robust.slurm.values import expand  # noqa: PLC0415 (the same)

    try:
        return node in expand(nodes)
    except SlurmParseError:
        return False


def gpus(text: str, node: str) -> int:
    """GPUs of this node; 0 if the text does not say, or not as a plain number (shares, instances, thousands)."""
    return gpu_count(settings(text, node).get("gres", ""))


def gpu_count(gres: str) -> int:
    """GPUs of a `Gres` value: `gpu:h100:4(S:0),gpu:h100:4,nic:2` is 8; 0 if a part of it is of another shape."""
    found = 0
    for part in _BOUND.sub("", gres.strip("\"'")).split(","):
        if part.split(":")[0] == "gpu":
            match = _COUNT.match(part)
            if match is None:
                return 0
            found += int(match[1] or 1)
    return found
