"""Is the system as the site configured it: kernel, modules, sysctls, huge pages, security modules?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from slurm_robust.nodecheck.checks import Check, CheckError, Context, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.sources import small_files

_SYSCTL = re.compile(r"[a-z][\w*-]*(?:[./][\w*:-]+){1,8}\Z")
_MODULE = re.compile(r"[\w-]{1,64}\Z")
_SIZE = re.compile(r"[0-9]{1,8}kB\Z")
_CLOCKSOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
_CHOSEN = re.compile(r"\[([\w-]{1,32})\]")
# Bits of /proc/sys/kernel/tainted that a fault sets (the kernel's admin guide, "Tainted kernels").
_TAINTS = {4: "a machine check", 5: "a bad page", 7: "an oops", 14: "a soft lockup"}
_REMEDIES: Mapping[str, str] = {
    "kernel": "install and boot that kernel, or correct nodecheck.options.settings.kernel",
    "cmdline": "change the boot loader's command line and reboot",
    "cmdline_without": "change the boot loader's command line and reboot",
    "modules": "`modprobe` it; look in /etc/modules-load.d",
    "sysctl": "`sysctl --system`; look in /etc/sysctl.d",
    "hugepages": "reserve them at boot: memory is in pieces later",
    "thp": "write it to /sys/kernel/mm/transparent_hugepage/enabled",
    "lsm": "look at the security module's configuration and the boot loader's command line",
    "clocksource": "look in the kernel log for why; reboot",
    "files": "install what is missing",
    "uptime": "reboot at the next chance",
    "reboot_required": "reboot at the next chance",
    "taint": "look in the kernel log for what it was; reboot",
}
_NAMES = tuple(_REMEDIES)


def _refuse(name: str, value: Any, why: str) -> CheckError:
    return CheckError(f"nodecheck.options.settings.{name}: {value!r} {why}")


def validate(options: Options) -> None:
    """Refuse names that cannot be."""
    for name in ("kernel", "cmdline", "cmdline_without", "modules", "lsm", "files", "fail"):
        for value in options[name]:
            if not isinstance(value, str) or (name == "modules" and not _MODULE.match(value)):
                raise _refuse(name, value, "is not a name")
            if name == "files" and not value.startswith("/"):
                raise _refuse(name, value, "is not an absolute path")
            if name == "fail" and value not in _NAMES:
                raise _refuse(name, value, f"is not one of {', '.join(_NAMES)}")
    for value in options["sysctl"]:
        if not isinstance(value, str) or not _SYSCTL.match(value) or ".." in value:
            raise _refuse("sysctl", value, "is not a name such as vm.swappiness")
    for size, count in options["hugepages"].items():
        if not isinstance(size, str) or not _SIZE.match(size) or type(count) is not int:
            raise _refuse("hugepages", size, 'is not a page size such as "2048kB" with a number of pages')


def probe(context: Context, options: Options) -> Facts:
    """Read the values under the names that the site gave, and no others."""
    validate(options)
    loaded: dict[str, bool] = {}
    if options["modules"]:
        names = {line.partition(" ")[0] for line in small_files.read_text(context.path("/proc/modules")).splitlines()}
        for name in options["modules"]:
            plain = name.replace("-", "_")
            # A module that is built into the kernel has a folder, too, if it has parameters.
            loaded[name] = plain in names or context.path(f"/sys/module/{plain}").is_dir()
    keys = {key: key.replace(".", "/") if "/" not in key else key for key in options["sysctl"]}
    uptime = small_files.text(context.path("/proc/uptime")).partition(" ")[0]
    return {
        "kernel": small_files.text(context.path("/proc/sys/kernel/osrelease")),
        "cmdline": small_files.text(context.path("/proc/cmdline"), 8192).split(),
        "modules": loaded,
        "sysctl": {
            key: " ".join(small_files.text(context.path(f"/proc/sys/{place}"), 4096).split())
            for key, place in keys.items()
        },
        "hugepages": {
            size: small_files.number(context.path(f"/sys/kernel/mm/hugepages/hugepages-{size}/nr_hugepages"))
            for size in options["hugepages"]
        },
        "thp": _chosen(small_files.text(context.path("/sys/kernel/mm/transparent_hugepage/enabled"))),
        "lsm": _security(context) if options["lsm"] else [],
        "clocksource": small_files.text(context.path(_CLOCKSOURCE)),
        "files": {name: small_files.exists(context.path(name)) for name in options["files"]},
        "uptime_days": round(float(uptime) / 86400, 2) if re.match(r"\d{1,12}(\.\d{1,9})?\Z", uptime) else None,
        "reboot_required": any(
            small_files.exists(context.path(f"{run}/reboot-required")) for run in ("/run", "/var/run")
        ),
        "tainted": small_files.number(context.path("/proc/sys/kernel/tainted")),
    }


def _chosen(text: str) -> str:
    match = _CHOSEN.search(text)
    return match[1] if match else ""


def _security(context: Context) -> list[str]:
    """Return the security modules; SELinux with its mode."""
    names = [name for name in small_files.text(context.path("/sys/kernel/security/lsm"), 1024).split(",") if name]
    enforce = small_files.number(context.path("/sys/fs/selinux/enforce"))
    if enforce is not None:
        names.append("selinux=enforcing" if enforce else "selinux=permissive")
    return names


def _differences(facts: Facts, options: Options) -> list[tuple[str, str]]:
    """Return (name of the setting, what differs in words), in the order of `_NAMES`."""
    found: list[tuple[str, str]] = []
    if (
        options["kernel"]
        and facts["kernel"]
        and not any(fnmatchcase(facts["kernel"], name) for name in options["kernel"])
    ):
        found.append(("kernel", f"the kernel is {facts['kernel']}, not {' or '.join(options['kernel'])}"))
    if facts["cmdline"]:
        found += [
            ("cmdline", f"{word} is not on the kernel's command line")
            for word in options["cmdline"]
            if word not in facts["cmdline"]
        ]
        found += [
            ("cmdline_without", f"{word} is on the kernel's command line")
            for word in options["cmdline_without"]
            if word in facts["cmdline"]
        ]
    found += [("modules", f"module {name} is not loaded") for name, there in facts["modules"].items() if not there]
    for key, wanted in options["sysctl"].items():
        is_now, should = facts["sysctl"][key], " ".join(str(wanted).split())
        if is_now != should:
            found.append(("sysctl", f"{key} is {is_now or 'unknown here'}, not {should}"))
    for size, count in options["hugepages"].items():
        if (facts["hugepages"][size] or 0) < count:
            found.append(("hugepages", f"{facts['hugepages'][size] or 0} huge pages of {size}, {count} are expected"))
    if options["thp"] and facts["thp"] and facts["thp"] != options["thp"]:
        found.append(("thp", f"transparent huge pages are {facts['thp']}, not {options['thp']}"))
    found += [("lsm", f"{name} is not active") for name in options["lsm"] if name not in facts["lsm"]]
    if options["clocksource"] and facts["clocksource"] and facts["clocksource"] != options["clocksource"]:
        found.append(("clocksource", f"time is read from {facts['clocksource']}, not from {options['clocksource']}"))
    found += [("files", f"{name} is missing") for name, there in facts["files"].items() if not there]
    return found + _state(facts, options)


def _state(facts: Facts, options: Options) -> list[tuple[str, str]]:
    found = []
    days = facts["uptime_days"]
    if options["max_uptime_days"] and days is not None and days > options["max_uptime_days"]:
        found.append(("uptime", f"the node is up for {days:.0f} days, {options['max_uptime_days']:g} are the limit"))
    if options["reboot_required"] and facts["reboot_required"]:
        found.append(("reboot_required", "an update waits for a reboot"))
    tainted = facts["tainted"] or 0
    why = [words for bit, words in _TAINTS.items() if tainted > 0 and tainted >> bit & 1]
    if options["taint"] and why:
        found.append(("taint", f"this kernel has met {' and '.join(why)}"))
    return found


def judge(facts: Facts, options: Options) -> Finding:
    """Warn of each difference; fail for those that the site lists in `fail`."""
    found = _differences(facts, options)
    if not found:
        return Finding.passed("settings_as_wanted", "the system is as configured", {"kernel": facts["kernel"]})
    found.sort(key=lambda pair: pair[0] not in options["fail"])
    name = found[0][0]
    status = Status.FAIL if name in options["fail"] else Status.WARN
    evidence = {"differences": [{"setting": setting, "sentence": words} for setting, words in found[:32]]}
    return Finding(status, f"{name}_differs", "; ".join(words for _, words in found), _REMEDIES[name], evidence)


_OURS = "ours: only the site knows"
check = Check(
    **Check.parts_of(__name__),
    reads="/proc/{cmdline,modules,uptime,sys/**}, /sys/kernel/{mm,security}/**, /sys/module, /run/reboot-required",
    cost="a small read a setting, 1 ms",
    lane="files",
    options={
        "kernel": Option([], "patterns of releases one of which must run, as [5.15.0-*-generic]", _OURS),
        "cmdline": Option([], "words that must be on the kernel's command line, as [iommu=pt]", _OURS),
        "cmdline_without": Option([], "words that must not be there", _OURS),
        "modules": Option([], "kernel modules that must be loaded, as [nvidia_peermem, lustre]", _OURS),
        "sysctl": Option(
            {}, "{name: value} that must be so, as {kernel.numa_balancing: 0}", _OURS, items=(int, float, str)
        ),
        "hugepages": Option({}, "{size: least number of pages}, as {2048kB: 1024}", _OURS),
        "thp": Option(
            "", "transparent huge pages: always, madvise or never; empty: any", _OURS, ("always", "madvise", "never")
        ),
        "lsm": Option([], "security modules that must be active, as [apparmor] or [selinux=permissive]", _OURS),
        "clocksource": Option("", "what time must be read from, as tsc; empty: any", _OURS),
        "files": Option([], "files, folders or devices that must be there", _OURS),
        "max_uptime_days": Option(0.0, "days since boot above which it warns; 0: never", _OURS),
        "reboot_required": Option(False, "warn where an update left /run/reboot-required", "ours: reboots are planned"),
        "taint": Option(
            True,
            "warn of an oops, machine check, bad page or soft lockup of this kernel",
            "the kernel's guide on tainted kernels",
        ),
        "fail": Option(
            [], f"of {', '.join(_NAMES)}: those that make the node unfit", "ours: a new kernel must not drain a fleet"
        ),
    },
)
