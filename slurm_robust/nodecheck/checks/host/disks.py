"""Are the local disks there, alive and writable, and the arrays of them whole?"""

from __future__ import annotations

from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

from slurm_robust.nodecheck.checks import Check, CheckError, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import small_files

_NOT_LOCAL = ("loop", "ram", "zram", "sr", "fd", "nbd", "rbd", "dm-", "md", "drbd")
_MAX_DISKS = 256


def _remote(folder: Path) -> bool:
    """True for a disk that comes over iSCSI or Fibre Channel."""
    try:
        return any(part.startswith(("session", "rport-")) for part in folder.resolve().parts)
    except (OSError, RuntimeError):  # a link that leads to itself
        return False


def _disks(context: Context) -> dict[str, Facts]:
    """Return whole disks by name, without removable ones and those that stand for another device or a network."""
    found: dict[str, Facts] = {}
    for folder in small_files.matching(context.path("/sys/block"), "*")[:_MAX_DISKS]:
        # A hidden device is a path of a multipath disk, not a disk of its own.
        if folder.name.startswith(_NOT_LOCAL) or small_files.number(folder / "hidden") == 1:
            continue
        if small_files.number(folder / "removable") == 1 or not small_files.number(folder / "size") or _remote(folder):
            continue
        found[folder.name] = {
            "read_only": small_files.number(folder / "ro") == 1,
            "state": small_files.text(folder / "device/state", 32),
        }
    return found


def _expected(options: Options) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for pattern, count in options["expected"].items():
        if not isinstance(pattern, str) or type(count) is not int or count < 0:
            raise CheckError(f"nodecheck.options.disks.expected: {pattern!r}: {count!r} is not a number of disks")
        wanted[pattern] = count
    return wanted


def probe(context: Context, options: Options) -> Facts:
    """Disks, NVMe controllers and arrays with their states."""
    from slurm_robust.nodecheck.sources import mdstat  # noqa: PLC0415 (only this lane's process pays for it)

    controllers = {
        folder.name: small_files.text(folder / "state", 32)
        for folder in small_files.matching(context.path("/sys/class/nvme"), "nvme[0-9]*")[:_MAX_DISKS]
    }
    arrays = [asdict(array) for array in mdstat.parse(small_files.read_text(context.path("/proc/mdstat"), 1 << 18))]
    return {"disks": _disks(context), "controllers": controllers, "arrays": arrays, "expected": _expected(options)}


def _array_faults(arrays: list[Facts]) -> list[tuple[str, str, str]]:
    faults = []
    for array in arrays:
        name = array["name"]
        if array["container"]:
            continue  # of Intel's or DDF's arrays, which stand beside it: it never runs itself
        if not array["active"]:
            faults.append(("array_inactive", f"array {name} is not running", f"`mdadm --detail /dev/{name}`"))
        elif array["missing"] or array["failed"]:
            lost = f", {', '.join(array['failed'])} failed" if array["failed"] else ""
            again = f"; {array['busy']} runs" if array["busy"] else ""
            words = f"array {name} lacks {max(array['missing'], len(array['failed']))} of its disks{lost}{again}"
            faults.append(("array_degraded", words, f"replace the disk: `mdadm --detail /dev/{name}`"))
    return faults


def judge(facts: Facts, options: Options) -> Finding:
    """Fails only where fewer disks are there than the site counts; the rest warns, since jobs do not use every disk."""
    disks, controllers = facts["disks"], facts["controllers"]
    for pattern, count in facts["expected"].items():
        there = sum(fnmatchcase(name, pattern) and not disk["read_only"] for name, disk in disks.items())
        if there < count:
            sentence = f"{there} usable disks are called {pattern}, {count} are expected"
            remedy = "look for the lost one in the kernel log, `lsblk` and `nvme list`"
            return Finding.fail("disk_missing", sentence, remedy, facts)
    faults = _array_faults(facts["arrays"])
    # A controller shows `resetting` or `connecting` for a moment while it recovers.
    dead = [name for name, state in controllers.items() if state in ("dead", "deleting", "deleting (no IO)")]
    if dead:
        faults.append(("nvme_dead", f"NVMe controller {', '.join(dead)} is dead", "power-cycle the node; replace it"))
    offline = [name for name, disk in disks.items() if disk["state"] in ("offline", "transport-offline")]
    if offline:
        faults.append(("disk_offline", f"disk {', '.join(offline)} is offline", "look at the kernel log and its cable"))
    # Virtual disks (vda, xvda) are often read-only on purpose: images, configuration drives.
    read_only = [name for name, disk in disks.items() if disk["read_only"] and name.startswith(("nvme", "sd"))]
    if read_only:
        words = f"disk {', '.join(read_only)} can only be read"
        faults.append(("disk_read_only", words, "a worn-out disk does so: `nvme smart-log`; else `blockdev --setrw`"))
    if faults:
        code, _, remedy = faults[0]
        return Finding.warn(code, "; ".join(words for _, words, _ in faults), remedy, facts)
    if not disks and not controllers and not facts["arrays"]:
        return Finding.skip("no_disks", "no local disk")
    count = len(disks)
    return Finding.passed("disks_alive", f"{count} local disk{'s' if count != 1 else ''} in order", facts)


def valid_while(facts: Facts, options: Options) -> list[tuple[str, ...]]:
    """Return the conditions that each disk that the site counts stays there and writable."""
    counted = [name for name in facts["disks"] if any(fnmatchcase(name, pattern) for pattern in facts["expected"])]
    return [("says", f"/sys/block/{name}/ro", "0") for name in counted if not facts["disks"][name]["read_only"]]


check = Check(
    **Check.parts_of(__name__),
    reads="/sys/block/*/{size,ro,removable,device/state}, /sys/class/nvme/*/state, /proc/mdstat",
    cost="four small reads a disk, 1–2 ms",
    lane="files",
    options={"expected": Option({}, '{pattern of names: least number}, as {"nvme*": 8}', "ours: only the site knows")},
)
