"""Keeps in `cluster.json` the facts of a devcluster and the processes that it started."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slurm_robust.devcluster.conf import Settings
from slurm_robust.devcluster.process import ClusterProcess
from slurm_robust.devcluster.spec import ClusterPaths, DevClusterError, Spec

VERSION = 1


@dataclasses.dataclass(frozen=True)
class ClusterRecord:
    """The content of `cluster.json`.

    Attributes:
        processes: role → process; roles are `munged`, `slurmctld`, `slurmd.NODE`, `srobustd`.
        notices: Sentences about what is missing here and why.
        boot_id: Id of the boot in which the processes were started: after a reboot none of them exists.
    """

    directory: Path
    spec: Spec
    settings: Settings
    processes: dict[str, ClusterProcess]
    notices: tuple[str, ...]
    boot_id: str

    @property
    def layout(self) -> ClusterPaths:
        """The paths of the cluster's files."""
        return ClusterPaths(self.directory)

    def live(self) -> dict[str, ClusterProcess]:
        """Return the processes that still run."""
        if self.boot_id != boot_id():
            return {}
        return {role: process for role, process in self.processes.items() if process.alive}


def boot_id() -> str:
    """Return an id that changes with every boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def create(record: ClusterRecord) -> None:
    """Write the first record of a directory: from then on the folder belongs to this cluster alone.

    Raises:
        DevClusterError: another cluster has the directory.
    """
    whole = record.directory / f".{record.settings.name}.new"
    try:
        # The link appears with the whole content or not at all: if we are killed here, no half record is left.
        whole.write_text(_encode(record), encoding="utf-8")
        os.link(whole, record.layout.record)
    except FileExistsError:
        raise DevClusterError(taken(record.directory)) from None
    finally:
        whole.unlink(missing_ok=True)


def taken(directory: Path) -> str:
    """Return the error text for a directory that already has a cluster."""
    return (
        f"{directory}: a devcluster is there already, running or left by an `up` that was interrupted; "
        f"end it with: srobust devcluster down --dir {directory}"
    )


def change_settings(directory: Path, settings: Settings, notice: str) -> None:
    """Store changed settings, and a notice that gives the reason."""
    with _rewritten(directory) as (now, put):
        put(dataclasses.replace(now, settings=settings, notices=(*now.notices, notice)))


def read(directory: Path) -> ClusterRecord:
    """Return the record of a directory.

    Raises:
        DevClusterError: there is no record, or this version does not understand it.
    """
    path = ClusterPaths(directory).record
    try:
        with path.open(encoding="utf-8") as file:
            # The record says which pids are to be killed: root must not believe another user's.
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                raise DevClusterError(f"{directory}: this devcluster belongs to another user; use it as that user")
            return _decode(json.load(file))
    except FileNotFoundError:
        raise DevClusterError(
            f"{directory}: no devcluster here (no {path.name}); start one with: srobust devcluster up --dir {directory}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DevClusterError(f"{path}: not a devcluster's record: {error!r}; remove the directory by hand") from error


@contextlib.contextmanager
def changed(directory: Path) -> Iterator[dict[str, ClusterProcess]]:
    """Yield the table of processes, to be changed in place; it is written back at the end, one writer at a time."""
    with _rewritten(directory) as (record, put):
        try:
            yield record.processes
        finally:
            put(record)


@contextlib.contextmanager
def _rewritten(directory: Path) -> Iterator[tuple[ClusterRecord, Callable[[ClusterRecord], None]]]:
    layout = ClusterPaths(directory)

    def put(record: ClusterRecord) -> None:
        fresh = layout.record.with_suffix(".new")
        fresh.write_text(_encode(record), encoding="utf-8")
        fresh.replace(layout.record)

    with layout.lock.open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield read(directory), put


def _encode(record: ClusterRecord) -> str:
    raw: dict[str, Any] = {
        "version": VERSION,
        "directory": str(record.directory),
        "boot_id": record.boot_id,
        "settings": dataclasses.asdict(record.settings),
        "spec": dataclasses.asdict(record.spec) | {"directory": str(record.directory)},
        "processes": {role: [p.pid, p.start_ticks] for role, p in record.processes.items()},
        "notices": list(record.notices),
    }
    return json.dumps(raw, indent=1, default=os.fspath) + "\n"


def _decode(raw: dict[str, Any]) -> ClusterRecord:
    if raw["version"] != VERSION:
        raise ValueError(f"version {raw['version']}, expected {VERSION}")
    directory = Path(raw["directory"])
    return ClusterRecord(
        directory=directory,
        spec=Spec(**(raw["spec"] | {"directory": directory})),
        settings=Settings(**(raw["settings"] | {"version": tuple(raw["settings"]["version"])})),
        processes={role: ClusterProcess(int(pid), int(ticks)) for role, (pid, ticks) in raw["processes"].items()},
        notices=tuple(raw["notices"]),
        boot_id=raw["boot_id"],
    )
