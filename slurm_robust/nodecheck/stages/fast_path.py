"""The prolog's short way: was this node found fit a moment ago, and has nothing changed since?

A look that found the node fit leaves a *fresh verdict*: until when it holds, of which boot, program and configuration
it speaks, and what to watch meanwhile (new lines of the kernel log, the number of GPUs, mounts). Where it holds, no
check is loaded. Anything else, also whatever goes wrong here, leads to the whole look.

Every import counts here, so there is none but of what the interpreter has loaded anyway: no json, no re, no pathlib.
"""

from __future__ import annotations

import os
import stat
import sys
import time

from slurm_robust import __version__
from slurm_robust.nodecheck.stages.cache_conditions import ASKED, WATCHES, Stale, ask

NAME = "fresh"
"""The file in `nodecheck.cache_dir`."""
FORMAT = f"srobust-fresh 1 {__version__}"
DEFAULT_CONFIG = "/etc/slurm_robust/robust.yaml"
DEFAULT_CACHE_DIR = "/run/slurm_robust"
_MAX_BYTES = 1 << 20


def identity(path: str) -> str:
    """What a file is, so that any change of it shows: device, inode, size, times; `none` where there is no file."""
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return "none"
    return f"{info.st_dev} {info.st_ino} {info.st_size} {info.st_mtime_ns} {info.st_ctime_ns}"


def cache_dir_of(config: str, node: str) -> str:
    """Where this configuration most likely has its state: a hint only, since no YAML is read here.

    What is found there names the configuration that it speaks of, so a wrong hint finds nothing, or nothing wrong.
    """
    try:
        with open(config, "rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        text = ""
    lines = [line.split(" #")[0] for line in text.splitlines() if not line.lstrip().startswith("#")]
    named = [line.partition("cache_dir:")[2] for line in lines if "cache_dir:" in line]
    if len(named) > 1:
        raise Stale("the configuration names several folders")
    folder = named[0].replace(",", " ").replace("}", " ").strip().split(" ")[0].strip("\"'") if named else ""
    return (folder or DEFAULT_CACHE_DIR).replace("%n", node)


def open_own(folder: str) -> int:
    """A descriptor of our state's folder, where nobody else can have put anything into it.

    Raises:
        OSError: it is not there, or no folder, or a link.
        Stale: it is not believed.
    """
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    info = os.fstat(inside)
    # An ordinary user may read what root keeps; root believes root only.
    if info.st_uid not in (0, os.geteuid()) or others_may_write(info):
        os.close(inside)
        raise Stale(f"{folder} may be written by others")
    return inside


def others_may_write(info: os.stat_result) -> bool:
    """True where anybody but the owner, or root's group, may write it."""
    return bool(info.st_mode & 0o002 or (info.st_mode & 0o020 and info.st_gid not in (0, os.getegid())))


def read_own(folder: str, name: str) -> str:
    """A file of our state.

    Raises:
        OSError: it is not there.
        Stale: it is not believed, or too long.
    """
    inside = open_own(folder)
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=inside)
    finally:
        os.close(inside)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in (0, os.geteuid()) or info.st_size > _MAX_BYTES:
            raise Stale(f"{folder}/{name} is not ours")
        return os.read(fd, _MAX_BYTES).decode("utf-8", "replace")
    finally:
        os.close(fd)


def boot_id(root: str = "/") -> str:
    """The kernel's name of this boot, empty where it cannot be read."""
    try:
        with open(f"{root.rstrip('/')}/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read(100).decode("ascii", "replace").strip()
    except OSError:
        return ""


def holds(config: str, node: str) -> tuple[str, dict[str, str]]:
    """Look whether the fresh verdict holds.

    Returns:
        What it comes to, for the log; its lines by their first word, of which `again` names the checks that are looked
        at nevertheless.

    Raises:
        Stale: it does not, and why.
        Exception: anything else means the same.
    """
    if not node:
        raise Stale("SLURMD_NODENAME names no node")
    lines = read_own(cache_dir_of(config, node), NAME).splitlines()
    if not lines or lines[0] != FORMAT or lines[-1] != "end":
        raise Stale("another version's")
    said = dict(line.split("\t", 1) for line in lines[1:-1] if not line.startswith("watch\t"))
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    made_s, until_s = float(said["made"]), float(said["until"])
    if said["node"] != node or said["boot"] != boot_id(said["root"]):
        raise Stale("of another boot or node")
    if not made_s <= now_s < until_s:
        raise Stale(f"{now_s - made_s:.0f} s old")
    if said["config"] != f"{config}\t{identity(config)}":
        raise Stale("of another configuration")
    asked = []
    for line in lines[1:-1]:
        if line.startswith("watch\t"):
            _, kind, *words = line.split("\t")
            if kind in ASKED:
                asked.append((ASKED[kind], words))
            else:
                WATCHES[kind](said["root"].rstrip("/"), *words)
    ask(said["root"].rstrip("/"), asked)
    return f"{said['checks']} checks found it fit {now_s - made_s:.0f} s ago, no change since", said


def node_of(name: str) -> str:
    """The node's name, `SLURMD_NODENAME`, where it has that shape; else empty, and the whole look finds another."""
    return name if name and name.isascii() and name.replace("-", "").replace(".", "").replace("_", "").isalnum() else ""


def main(stage: str, config: str = "", verbose: str = "") -> int:
    """What the scripts run.

    Args:
        stage: `prolog`, `epilog` or `periodic`.
        config: The configuration's path; empty for the usual one.
        verbose: Not empty: one line for the log also where all is well.

    Returns:
        The exit code: 0 fit or not to be held against the node, 20 for the script to exit 1, 2 wrong configuration.
    """
    config = config or DEFAULT_CONFIG
    again, why = "", ""
    if stage == "prolog":
        try:
            words, said = holds(config, node_of(os.environ.get("SLURMD_NODENAME", "")))
            again = said["again"]
        except FileNotFoundError:
            why = "none is left"
        except Exception as error:  # noqa: BLE001 (whatever it is, the whole look finds it, too)
            why = str(error) or type(error).__name__
        else:
            if not again:
                if verbose:
                    print(f"srobust-prolog: fresh verdict: {words}", file=sys.stderr)
                return 0
    import gc  # noqa: PLC0415 (the short way does not need it)

    # What is over within a tenth of a second leaves no garbage worth a search.
    gc.disable()
    try:
        from slurm_robust.nodecheck.stages import stage_run  # noqa: PLC0415 (the short way does not load it)

        return stage_run.main(stage, config, verbose=bool(verbose), why=why, again=again)
    finally:
        gc.enable()
