"""Looks up names of hosts: in /etc/hosts, and by the resolver within a time limit.

The resolver blocks while its servers are silent, so it is asked in processes that can be abandoned.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.isolate import Task, run_all
from slurm_robust.nodecheck.sources import small_files

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")
_MAX_BYTES = 1 << 20


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
        For each name `addresses` (empty without any), `error` (empty, `timeout` or the resolver's words) and
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
    """Return whether one of this machine's interfaces has that address: the kernel binds no other address."""
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
        `error`: empty if it was accepted, else why not; `took_s`.
    """
    started_s = time.monotonic()
    try:
        socket.create_connection((address, port), timeout_s).close()
    except OSError as error:
        return {"error": error.strerror or str(error) or "timed out", "took_s": round(time.monotonic() - started_s, 3)}
    return {"error": "", "took_s": round(time.monotonic() - started_s, 3)}


def hosts_file(context: Context) -> dict[str, list[str]]:
    """Return the names and addresses in this machine's /etc/hosts."""
    return in_hosts(small_files.read_text(Path(context.path("/etc/hosts")), _MAX_BYTES))
