"""Finds what this machine offers for a devcluster: commands, ports, munge, cgroups."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import slurm_robust
from slurm_robust.devcluster.spec import DevClusterError

SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")
PORT_BLOCK = 80
"""Ports of one cluster: slurmctld, up to 64 slurmds, slurmdbd and the daemon's HTTP side at the end."""
FIRST_PORT, LAST_PORT = 10000, 20000
"""Below the rendezvous ports of trainings (`attempt_settings`, examples/train.py), and the ephemeral range of srun."""
FREEZER = Path("/sys/fs/cgroup/freezer")


_PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
}


def search_path() -> str:
    """Return PATH for everything in a devcluster: this interpreter's commands first, and the sbin folders."""
    first = [str(Path(sys.executable).parent)]
    parts = [*first, *os.environ.get("PATH", "/usr/bin:/bin").split(":"), *SBIN]
    return ":".join(dict.fromkeys(part for part in parts if part))


def python_path() -> str | None:
    """Return the PYTHONPATH with which other processes import this package; None if it is installed."""
    home = Path(slurm_robust.__file__).resolve().parent.parent
    return None if home.name in ("site-packages", "dist-packages") else str(home)


def command(name: str) -> str:
    """Return the path of a command.

    Raises:
        DevClusterError: the command is not installed; the message says how to install it.
    """
    found = shutil.which(name, path=search_path())
    if found is None:
        package = _PACKAGES.get(name, "slurm-client")
        raise DevClusterError(f"{name} is not installed; on Debian and Ubuntu: apt-get install {package}")
    return found


def installed() -> bool:
    """Return whether Slurm's daemons are installed."""
    return all(shutil.which(name, path=search_path()) for name in ("slurmctld", "slurmd", "srun"))


def slurm_version() -> tuple[int, int]:
    """Return Slurm's major version, `(22, 5)` for 22.05.8; `(0, 0)` if slurmctld prints anything else."""
    done = subprocess.run([command("slurmctld"), "-V"], capture_output=True, text=True, check=False, timeout=10)
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def cgroup_works(name: str) -> bool:
    """Return whether proctrack/cgroup can work: make a freezer cgroup, move a process into it, remove it.

    Only cgroup v1 counts: with v2 Slurm 22.05 needs systemd and a single slurmd on the machine.
    """
    group = FREEZER / f"{name}-trial"
    try:
        group.mkdir()
    except OSError:
        return False
    try:
        with subprocess.Popen(["sleep", "60"]) as sleeper:
            try:
                (group / "cgroup.procs").write_text(str(sleeper.pid), encoding="ascii")
                inside = str(sleeper.pid) in (group / "cgroup.procs").read_text(encoding="ascii").split()
            finally:
                sleeper.kill()
    except OSError:
        inside = False
    with contextlib.suppress(OSError):
        group.rmdir()
    return inside


def remove_cgroups(top: Path) -> bool:
    """Remove a tree of empty cgroups; False if something is left."""
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
    return not top.exists()


@contextlib.contextmanager
def port_block() -> Iterator[int]:
    """Yield a block of free ports, reserved against other devclusters until the daemons have bound them.

    Blocks begin at fixed multiples; a socket in the kernel's abstract namespace is the lock of each: it is exclusive
    across users, has the scope of the ports themselves (the network namespace), and ends with its process, so no
    lock can go stale. A block with any port in use is skipped: it belongs to a cluster, perhaps with a dead node.

    Yields:
        The first port.

    Raises:
        DevClusterError: no block is free.
    """
    starts = list(range(FIRST_PORT, LAST_PORT - PORT_BLOCK, PORT_BLOCK))
    random.shuffle(starts)
    for start in starts:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
            try:
                claim.bind(f"\0srobust-devcluster-{start}")
            except OSError:
                continue
            if all(_is_free(port) for port in range(start, start + PORT_BLOCK)):
                yield start
                return
    raise DevClusterError(f"no {PORT_BLOCK} free ports in a row between {FIRST_PORT} and {LAST_PORT}")


def listens(port: int) -> bool:
    """Return whether a process listens on a TCP port; reads /proc, since listeners log a connection as an error."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            if re.search(rf":{port:04X} [0-9A-F]+:0000 0A ", Path(f"/proc/net/{table}").read_text(encoding="ascii")):
                return True
    return False


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Slurm binds: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
