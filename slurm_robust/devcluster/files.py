"""Makes and removes the folder of a devcluster."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

import slurm_robust
from slurm_robust.devcluster import conf, machine, record
from slurm_robust.devcluster.conf import Settings
from slurm_robust.devcluster.spec import ClusterPaths, DevClusterError, Spec

MAX_PATH = 70
"""Characters: Slurm and munge make sockets below the folder, and a socket's path has 107 at most."""


def make_directory(spec: Spec) -> Path:
    """Return the empty folder of a new cluster.

    Raises:
        DevClusterError: the folder is not empty, cannot be made, or its path is too long for a socket.
    """
    try:
        if spec.directory is None:
            directory = Path(tempfile.mkdtemp(prefix="srobust-devcluster-")).resolve()
        else:
            if spec.directory.is_symlink() and spec.directory.lstat().st_uid != os.geteuid():
                raise DevClusterError(f"{spec.directory}: a link of another user; take another folder with --dir")
            directory = spec.directory.resolve()
            directory.mkdir(parents=True, exist_ok=True)
            if directory.stat().st_uid != os.geteuid():
                raise DevClusterError(f"{directory}: belongs to another user; take another folder with --dir")
    except OSError as error:
        raise DevClusterError(f"cannot make {spec.directory or tempfile.gettempdir()}: {error}") from error
    if ClusterPaths(directory).record.exists():
        raise DevClusterError(record.taken(directory))
    problem = ""
    if len(str(directory)) > MAX_PATH:
        problem = f"path longer than {MAX_PATH} characters, too long for the sockets in it; take a shorter one"
    elif any(directory.iterdir()):
        problem = (
            "not empty; take another folder with --dir, or, where a devcluster was in it, clean it up with: "
            f"srobust devcluster down --dir {directory}"
        )
    if problem:
        if spec.directory is None:
            directory.rmdir()
        raise DevClusterError(f"{directory}: {problem}")
    # Other users run jobs here: they must reach configuration, sockets and the common working directory.
    directory.chmod(0o755)
    return directory


def write(spec: Spec, settings: Settings, layout: ClusterPaths) -> None:
    """Write every file and folder that the daemons need."""
    names = conf.node_names(spec.nodes)
    for folder in (layout.etc, layout.log, layout.run, layout.munge, layout.work, layout.tmp, layout.cgroup):
        folder.mkdir(exist_ok=True)
    node_folders = (*map(layout.spool, names), *map(layout.cache, names))
    for folder in (layout.gpu(0).parent, layout.kmsg("n1").parent, *node_folders):
        folder.mkdir(parents=True, exist_ok=True)
    (layout.state / "slurmctld").mkdir(parents=True, mode=0o700)
    layout.work.chmod(0o1777)
    layout.tmp.chmod(0o1777)

    key = layout.munge / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    for index in range(spec.gpus_per_node):
        # slurmd follows the link to a character device; `mknod … c 1 3` would need root.
        layout.gpu(index).symlink_to("/dev/null")
    if settings.proctrack == "cgroup":
        # Slurm names its cgroups after nodes alone, so two clusters would share them and kill each other's job 1:
        # each cluster has a group of its own, and cgroup.conf names it as the top of the hierarchy.
        cgroup_top(settings).mkdir()
        (layout.cgroup / "freezer").symlink_to(cgroup_top(settings))

    write_slurm_conf(spec, settings, layout)
    _write(layout.etc / "gres.conf", conf.gres_conf(spec, layout))
    _write(layout.etc / "cgroup.conf", conf.cgroup_conf(settings, layout))
    _write(layout.robust_yaml, conf.robust_yaml(spec, settings, layout))
    _write(layout.etc / "taskprolog", conf.task_prolog(layout), mode=0o755)
    home = Path(slurm_robust.__file__).resolve().parent
    for which in ("prolog", "epilog", "healthcheck"):
        name, home_of = f"srobust-{which}", "epilog" if which == "epilog" else "prolog"
        candidates = [top / home_of / name for top in (home.parent, home / "_scripts")] if spec.prolog else []
        sleep_s = spec.epilog_sleep_s if which == "epilog" else 0
        log = layout.log / "checks"
        lines = conf.script(which, exports(layout), candidates, layout.env, log=log, sleep_s=sleep_s)
        _write(layout.etc / which, lines, mode=0o755)
    values = {"SROBUST_PYTHON": sys.executable, "SROBUST_CODE": str(home.parent), "SROBUST_VERBOSE": "1"}
    _write(layout.env, conf.env_file(values | {"SROBUST_CONFIG": str(layout.robust_yaml)}))
    for name in names:
        for text in (
            f"Linux version 6.1.0 (devcluster) node {name}",
            "Command line: quiet",
            "systemd[1]: Reached target",
        ):
            append_kmsg(layout.kmsg(name), text, priority=6)


def write_slurm_conf(spec: Spec, settings: Settings, layout: ClusterPaths) -> None:
    """Write slurm.conf, and slurmdbd.conf if there is accounting."""
    _write(layout.slurm_conf, conf.slurm_conf(spec, settings, layout))
    if spec.accounting:
        _write(layout.slurmdbd_conf, conf.slurmdbd_conf(settings, layout), mode=0o600)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def exports(layout: ClusterPaths) -> dict[str, str]:
    """Return the variables with which a shell, a prolog or a daemon uses this cluster."""
    values = {
        "SLURM_CONF": str(layout.slurm_conf),
        "SROBUST_CONFIG": str(layout.robust_yaml),
        "SROBUST_PYTHON": sys.executable,
        "PATH": machine.search_path(),
    }
    if package := machine.python_path():
        values["PYTHONPATH"] = package
    return values


def append_kmsg(path: Path, text: str, *, priority: int = 4) -> None:
    """Add records to a scripted kernel log, as /dev/kmsg shows them: `priority,number,microseconds,-;text`.

    Each line is a message; a line that already has the whole form is written unchanged. Priorities are 3 error, 4
    warning (which NVIDIA's driver uses for an XID), 6 information.
    """
    number = len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
    with path.open("a", encoding="utf-8") as log:
        for line in text.splitlines():
            whole = line.split(";", 1)[0].count(",") >= 3 and line[:1].isdigit()
            since_boot_us = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
            log.write(f"{line}\n" if whole else f"{priority},{number},{since_boot_us},-;{line}\n")
            number += 1


def cgroup_top(settings: Settings) -> Path:
    """Return the cluster's own cgroup, above the cgroups that Slurm makes."""
    return machine.FREEZER / f"srobust-{settings.name}"


def is_left_over(directory: Path) -> bool:
    """Return whether a folder without a record contains only files of a devcluster, and belongs to us."""
    layout = ClusterPaths(directory)
    own = {
        "etc", "spool", "dev", "kmsg", "cache", "log", "run", "state", "munge", "work", "tmp", "cgroup", "robust.yaml",
        "database",
    }  # fmt: skip
    names = {path.name for path in directory.iterdir()} - {layout.lock.name, layout.record.with_suffix(".new").name}
    ours = directory.stat().st_uid == os.geteuid()
    if not ours or not all(name in own or (name.startswith(".dev") and name.endswith(".new")) for name in names):
        return False
    # A user's own folder may contain `log`, `tmp` and `work` alone.
    if not names & own:
        return True
    try:
        return "ClusterName=dev" in layout.slurm_conf.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _cgroup_of(directory: Path, settings: Settings | None) -> Path | None:
    if settings is not None:
        return cgroup_top(settings) if settings.proctrack == "cgroup" else None
    try:
        target = (ClusterPaths(directory).cgroup / "freezer").readlink()
    except OSError:
        return None
    return target if target.parent == machine.FREEZER and target.name.startswith("srobust-dev") else None


def remove(directory: Path, settings: Settings | None, *, timeout_s: float = 5) -> list[str]:
    """Remove cgroups and the folder.

    Returns:
        The paths that could not be removed.
    """
    left = []
    if (group := _cgroup_of(directory, settings)) is not None:
        deadline_s = time.monotonic() + timeout_s
        # A killed process leaves its cgroup a little after its end.
        while not machine.remove_cgroups(group):
            if time.monotonic() > deadline_s:
                left.append(str(group))
                break
            time.sleep(0.02)
    # The record is removed last: if we are killed before, `down` still knows the folder.
    keep = ClusterPaths(directory).record.name
    for entry in list(directory.iterdir()) if directory.is_dir() else []:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != keep:
            entry.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        left.append(str(directory))
    return left
