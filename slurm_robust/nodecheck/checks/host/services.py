"""Do the services run that the site wants on its nodes?"""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurm_robust.nodecheck.checks import Check, CheckError, Context, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.sources import processes, small_files

_NAME = re.compile(r"[\w.@:\\-]{1,200}\Z")
_COMMAND_CHARS = 15
_HIERARCHIES = ("", "systemd", "unified")


_Sign = tuple[str, str]
"""A file, and a word that it has as long as the service runs."""


def _in_cgroup(context: Context, unit: str) -> _Sign | None:
    """Return where processes stand in the unit's control group, at any place one slice deep."""
    for hierarchy in _HIERARCHIES:
        slices = context.path(f"/sys/fs/cgroup/{hierarchy}/system.slice")
        template = unit.partition("@")[0]
        places = [slices / unit]
        if "@" in unit:
            places.append(slices / f"system-{template}.slice" / unit)
        for place in places:
            inside = "/" + str(place.relative_to(context.root))
            if pids := small_files.text(place / "cgroup.procs", 4096).split():
                return f"{inside}/cgroup.procs", pids[0]
            if re.search(r"^populated 1$", small_files.text(place / "cgroup.events"), re.MULTILINE):
                return f"{inside}/cgroup.events", "1"
    return None


def _process(found: Iterable[processes.NodeProcess], name: str) -> _Sign | None:
    """Return the first process of this command: it is the one that started the others."""
    command = name[:_COMMAND_CHARS]
    pids = [process.pid for process in found if process.command == command and process.state != "Z"]
    return (f"/proc/{min(pids)}/comm", command) if pids else None


def validate(options: Options) -> None:
    """Refuse what cannot be the name of a unit or command."""
    for kind in ("required", "wanted"):
        for name in options[kind]:
            if not isinstance(name, str) or not _NAME.match(name):
                raise CheckError(f"nodecheck.options.services.{kind}: {name!r} is not a service's name")


def probe(context: Context, options: Options) -> Facts:
    """Read which of the named services have a process; a name with a dot is a unit, any other a command."""
    found = processes.scan(context)
    signs: dict[str, _Sign | None] = {}
    validate(options)
    for kind in ("required", "wanted"):
        for name in options[kind]:
            unit = name if name.endswith((".service", ".socket", ".scope")) else f"{name}.service"
            signs[name] = _process(found, name) or _in_cgroup(context, unit)
    return {
        "running": {name: sign is not None for name, sign in signs.items()},
        "signs": {name: sign for name, sign in signs.items() if sign},
        "processes": len(found),
    }


def judge(facts: Facts, options: Options) -> Finding:
    """Fail for services that the site requires, warn for services that it wants."""
    running = facts["running"]
    if not running:
        return Finding.skip("no_services_named", "the site names no services (nodecheck.options.services)")
    if not facts["processes"]:
        return Finding.unknown("no_processes", "no processes can be seen here", "is /proc mounted with hidepid?")
    for kind, status in (("required", Status.FAIL), ("wanted", Status.WARN)):
        gone = [name for name in options[kind] if not running[name]]
        if gone:
            sentence = f"{', '.join(gone)} {'does' if len(gone) == 1 else 'do'} not run"
            remedy = f"`systemctl status {gone[0]}`, `systemctl restart {gone[0]}`"
            return Finding(status, "service_down", sentence, remedy, {"running": running})
    return Finding.passed("services_run", f"{', '.join(running)} run", {"running": running})


def valid_while(facts: Facts, options: Options) -> list[tuple[str, ...]]:
    """Return the conditions that the required services go on."""
    return [("says", *facts["signs"][name]) for name in options["required"] if name in facts["signs"]]


check = Check(
    **Check.parts_of(__name__),
    reads="/proc/*/stat, /sys/fs/cgroup/**/system.slice/UNIT/{cgroup.procs,cgroup.events}; no systemctl",
    cost="one small read a process (once for all checks), 5–40 ms",
    lane="files",
    options={
        "required": Option([], "units or commands that must run, as [munged, sshd]", "ours: only the site knows"),
        "wanted": Option([], "the same, where it only warns", "ours: only the site knows"),
    },
)
