"""Starts a cluster's own accounting: a real slurmdbd on a real MariaDB, both private to the cluster.

MariaDB does not listen on a port, but on a socket in a folder that only the cluster's user can enter, so it needs no
accounts. Its files are small and end with the cluster, so nothing waits for the disk.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from slurm_robust.devcluster import machine
from slurm_robust.devcluster.spec import ClusterPaths, DevClusterError

COMMANDS = ("slurmdbd", "mariadbd")
_SYSTEM_TABLES = tuple(
    f"/usr/share/{folder}/{name}_system_tables.sql" for folder in ("mariadb", "mysql") for name in ("mariadb", "mysql")
)
"""Paths of MariaDB's own tables as SQL, in the versions of Debian's package."""


def environment(layout: ClusterPaths) -> dict[str, str]:
    """Return the variables with which slurmdbd finds MariaDB's socket."""
    return {"MYSQL_UNIX_PORT": str(layout.database / "socket")}


def _options(layout: ClusterPaths) -> list[str]:
    folder = layout.database
    options = [
        machine.command("mariadbd"),
        "--no-defaults",  # the options of a MariaDB of the machine itself do not apply
        f"--datadir={folder}/data",
        f"--tmpdir={folder}/tmp",
        "--skip-grant-tables",
        "--skip-networking",
        "--skip-log-bin",
        "--performance-schema=OFF",
        "--innodb-data-file-path=ibdata1:4M:autoextend",
        "--innodb-autoextend-increment=4",
        "--innodb-log-file-size=16M",
        # slurmdbd writes into its log that it wants a larger pool and log; it needs the long wait and the long texts.
        "--innodb-buffer-pool-size=128M",
        "--innodb-lock-wait-timeout=900",
        "--max-allowed-packet=16M",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-flush-method=nosync",
        "--innodb-doublewrite=OFF",
        "--innodb-use-native-aio=OFF",
    ]
    # As root, MariaDB only starts with this option.
    return [*options, "--user=root"] if os.geteuid() == 0 else options


def prepare(layout: ClusterPaths, *, timeout_s: float = 30) -> None:
    """Make MariaDB's folder with its own tables; slurmdbd makes the rest.

    Raises:
        DevClusterError: MariaDB fails, or its tables are not at Debian's places.
    """
    source = next((path for path in map(Path, _SYSTEM_TABLES) if path.exists()), None)
    if source is None:
        raise DevClusterError(f"{_SYSTEM_TABLES[-1]} is missing; on Debian: apt-get install mariadb-server-core")
    layout.database.mkdir(mode=0o700)
    (layout.database / "data" / "mysql").mkdir(parents=True)
    (layout.database / "tmp").mkdir()
    log = layout.log / "mariadbd.out"
    with log.open("ab") as out:
        done = subprocess.run(
            [*_options(layout), "--bootstrap"],
            input=b"use mysql;\n" + source.read_bytes(),
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=timeout_s,
        )
    if done.returncode:
        end = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-6:])
        raise DevClusterError(f"MariaDB could not make its tables:\n{end}")


def mariadbd(layout: ClusterPaths) -> tuple[str, ...]:
    """Return the database's command line."""
    sockets = (f"--socket={layout.database}/socket", f"--pid-file={layout.run}/mariadbd.pid")
    return (*_options(layout), *sockets)
