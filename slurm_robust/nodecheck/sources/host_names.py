"""Names of hosts: what slurm.conf calls the controllers, what /etc/hosts knows, and what the resolver says in time.

The resolver blocks for as long as its servers are silent: it is asked in processes that can be left alone.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.isolate import Task, run_all
from slurm_robust.nodecheck.sources import small_files

_PATHS = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    # Where slurmd keeps what it was sent: "configless".
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
)
_PAIR = re.compile(r"([A-Za-z]+)\s*=\s*([^\s#]+)")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")
_MAX_BYTES = 1 << 20
_MAX_HOSTS = 8
_PORT = 6817  # slurm.conf(5)


def controllers(text: str) -> tuple[list[str], int]:
    """The names or addresses by which slurm.conf has the controllers contacted, and the first of their ports.

    `SlurmctldHost=ctl1(10.0.0.1)` and the older `ControlMachine` with `ControlAddr` give an address: then no name is
    looked up. What has not the shape of a host's name is passed over.
    """
    hosts: list[str] = []
    old: dict[str, str] = {}
    port = _PORT
    for line in text.splitlines():
        for key, value in _PAIR.findall(line.partition("#")[0]):
            word = key.lower()
            if word == "slurmctldhost":
                name, _, address = value.partition("(")
                hosts.append((address.rstrip(")") or name) if is_host(name) else "")
            elif word in ("controlmachine", "controladdr", "backupcontroller", "backupaddr"):
                old[word] = value
            elif word == "slurmctldport" and (match := re.match(r"\d{1,5}", value)) and 0 < int(match[0]) < 65536:
                port = int(match[0])
    if not hosts:
        hosts = [old.get("controladdr") or old.get("controlmachine", "")]
        hosts.append(old.get("backupaddr") or old.get("backupcontroller", ""))
    return list(dict.fromkeys(host for host in hosts if is_host(host)))[:_MAX_HOSTS], port


def is_host(text: str) -> bool:
    """True for what may be given to the resolver: a name, or an address."""
    return bool(_HOST.match(text)) or is_address(text)


def is_address(text: str) -> bool:
    """True for an IPv4 or IPv6 address, which needs no resolver."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text)
        except (OSError, ValueError):
            continue
        return True
    return False


def slurm_conf(context: Context, named: str, env: Mapping[str, str]) -> str:
    """The text of slurm.conf: the one that the site names, `SLURM_CONF` where it is root's, or where Slurm keeps it.

    Users influence the environment: what `SLURM_CONF` names counts only as a plain file of root's (or of who runs this)
    that nobody else may write, and is not followed through a link.
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
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        info = os.fstat(fd)
        mine = info.st_uid in {0, os.geteuid()} and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return os.read(fd, _MAX_BYTES).decode("utf-8", "replace") if stat.S_ISREG(info.st_mode) and mine else ""
    except OSError:
        return ""
    finally:
        os.close(fd)


def in_hosts(text: str) -> dict[str, list[str]]:
    """Name → addresses, from the text of /etc/hosts; names in lower case."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        if is_address(address):
            for name in names:
                found.setdefault(name.lower(), []).append(address)
    return found


def resolve(names: Iterable[str], timeout_s: float) -> dict[str, dict[str, Any]]:
    """Ask the system's resolver, for all names at once.

    Returns:
        For each name `addresses` (empty where there are none), `error` (empty, `timeout` or the resolver's words) and
        `took_s`.
    """
    outcomes = run_all({name: Task(partial(_ask, name), timeout_s) for name in names})
    return {
        name: {
            "addresses": outcome.value["addresses"] if outcome.value else [],
            "error": outcome.value["error"] if outcome.value else outcome.error,
            "took_s": round(outcome.duration_s, 3),
        }
        for name, outcome in outcomes.items()
    }


def _ask(name: str) -> dict[str, Any]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return {"addresses": [], "error": getattr(error, "strerror", "") or str(error)}
    return {"addresses": list(dict.fromkeys(str(entry[4][0]) for entry in found)), "error": ""}


def is_local(address: str) -> bool:
    """True where one of this machine's interfaces has that address: the kernel lets nobody bind to another's."""
    bare = address.partition("%")[0]
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    try:
        # The family's own lookup fills in the scope of a link-local address; numbers only, nothing is asked.
        target = socket.getaddrinfo(address, 0, family, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST)[0][4]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(target)
    except OSError:
        return False
    return True


def connect(address: str, port: int, timeout_s: float) -> dict[str, Any]:
    """Open and close a TCP connection.

    Returns:
        `error`: empty where it was accepted, else why not; `took_s`.
    """
    started_s = time.monotonic()
    try:
        socket.create_connection((address, port), timeout_s).close()
    except OSError as error:
        return {"error": error.strerror or str(error) or "timed out", "took_s": round(time.monotonic() - started_s, 3)}
    return {"error": "", "took_s": round(time.monotonic() - started_s, 3)}


def hosts_file(context: Context) -> dict[str, list[str]]:
    """What this machine's /etc/hosts knows."""
    return in_hosts(small_files.read_text(Path(context.path("/etc/hosts")), _MAX_BYTES))
