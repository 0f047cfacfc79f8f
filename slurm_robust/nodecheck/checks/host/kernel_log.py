"""Has the kernel reported trouble with memory, CPUs, cards, disks or file systems since the last prolog?"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from slurm_robust.nodecheck.catalogue import kernel_patterns
from slurm_robust.nodecheck.checks import Check, CheckError, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import kernel_looks, mounts, shared_kernel_log, small_files

_LASTING = {"fs_shutdown": "was shut down", "remount_ro": "went read-only"}
_MAX_TOLD = 4
UNSEEN = " (the node itself does not show it)"


def _devices(context: Context, wanted: set[str]) -> dict[str, list[str]]:
    """Return the state of these mounted disks, by the kernel's names (`dm-0`, `sda1`), as the disks show it."""
    found: dict[str, list[str]] = {}
    table = mounts.parse(small_files.read_text(context.path("/proc/self/mountinfo"), 4 << 20))
    for mount in table:
        names = {mount.source.rsplit("/", 1)[-1]}
        with contextlib.suppress(OSError, ValueError):
            names = {*names, (context.path("/sys/dev/block") / mount.device).readlink().name}
        for name in wanted & names - found.keys():
            found[name] = kernel_looks.broken(context.root, table, name, mount)
    return found


def validate(options: Options) -> None:
    """Refuse kinds of messages that do not exist."""
    for name in ("ignore", "often"):
        for kind in options[name]:
            if kind not in kernel_patterns.KINDS:
                raise CheckError(f"nodecheck.options.kernel_log.{name}: {kind!r} is not a kind of message")
            if name == "often" and type(options[name][kind]) is not int:
                raise CheckError(f"nodecheck.options.kernel_log.often: {kind} has no whole number")


def probe(context: Context, options: Options) -> Facts:
    """Read the log since the last prolog, and how the file systems in it are mounted."""
    validate(options)
    tally = kernel_patterns.TroubleTally()
    most = shared_kernel_log.MOST_LINES
    news = shared_kernel_log.news(context, check.name, tally.add, kernel_patterns.WORDS, most)
    log = news.log
    facts: Facts = {
        "error": log.error,
        "errno": log.errno,
        "boot_id": news.boot_id,
        "seen": tally.seen,
        "flooded": sorted(kernel_patterns.kinds_of(log.capped) & tally.seen.keys()),
        "known": _pairs(news.kept.get("broken")),
        "back": tally.back,
        "cursor": dict(log.cursor if shared_kernel_log.counts(context) else news.cursor),
    }
    told = {name for _, name in _broken(facts)}
    facts["mounted"] = _devices(context, told) if told else {}
    before = context.shared.get("tainted", news.kept.get("tainted"))
    before = before if isinstance(before, int) else 0
    facts["unseen"] = kernel_looks.unseen(context.root, tally.seen, before)
    facts["tainted"] = kernel_looks.tainted(context.root) or 0
    return facts


def _pairs(known: Any) -> list[list[str]]:
    """Return the entries of a state file that have the shape of (kind, name)."""
    entries = known if isinstance(known, list) else []
    return [e for e in entries if isinstance(e, list) and len(e) == 2 and e[0] in _LASTING and isinstance(e[1], str)]


def _broken(facts: Facts) -> list[list[str]]:
    """Return (kind, device) of file systems that an error made read-only or shut down, now or at an earlier run."""
    said = [pair for pair in facts["known"] if pair not in facts["back"]]
    said += [[kind, name] for kind in _LASTING for name in facts["seen"].get(kind, {}).get("names", ())]
    return sorted({tuple(pair): pair for pair in said}.values())


def _still(facts: Facts) -> list[list[str]]:
    """Return the broken file systems that still show it themselves: a line alone is not enough."""
    return [[kind, name] for kind, name in _broken(facts) if kind in facts["mounted"].get(name, ())]


def judge(facts: Facts, options: Options) -> Finding:
    """Fails only for a file system that an error made read-only or shut down, and that shows it; the rest warns."""
    if facts["error"]:
        return shared_kernel_log.unreadable(facts, needed=False)
    still = [pair for pair in _still(facts) if pair[0] not in options["ignore"]]
    if still:
        kind = still[0][0]
        names = ", ".join(sorted({name for _, name in still}))
        sentence = f"file system on {names} {_LASTING[kind]} after an error"
        return Finding.fail(kind, sentence, kernel_patterns.KINDS[kind].remedy, {"seen": facts["seen"]})
    seen = {kind: entry for kind, entry in facts["seen"].items() if kind not in options["ignore"]}
    told = {
        kind: entry
        for kind, entry in seen.items()
        if kind in facts["flooded"] or entry["count"] >= options["often"].get(kind, kernel_patterns.KINDS[kind].often)
    }
    if not told:
        sentence = "the kernel log shows no trouble since the last run"
        return Finding.passed("quiet", sentence, {"seen": seen})
    worst = next(kind for kind in reversed(kernel_patterns.KINDS) if kind in told)
    order = sorted(told, key=lambda kind: kind != worst)
    unseen = facts.get("unseen", ())
    said = ", ".join(
        _say(kind, told[kind], flooded=kind in facts["flooded"]) + (UNSEEN if kind in unseen else "") for kind in order
    )
    sentence = f"kernel log since the last run: {said}"
    return Finding.warn(worst, sentence, kernel_patterns.KINDS[worst].remedy, {"seen": seen})


def _say(kind: str, entry: Mapping[str, Any], *, flooded: bool) -> str:
    names = entry["names"]
    about = f" ({', '.join(names[:_MAX_TOLD])}{', …' if len(names) > _MAX_TOLD else ''})" if names else ""
    return f"{kind} {shared_kernel_log.times(entry['count'], flooded=flooded)}{about}"


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep where the next run goes on, and which file systems an error has broken."""
    if facts["error"]:
        return None
    return {
        "boot_id": facts["boot_id"],
        "cursor": facts["cursor"],
        "broken": _still(facts),
        "tainted": facts["tainted"],
    }


check = Check(
    **Check.parts_of(__name__),
    reads="the kernel log (`nodecheck.kmsg`); what it names is looked at: /proc/self/mountinfo and fsync(2) of a file "
    "system, /sys/bus/pci, /sys/class/{block,nvme,net}, /sys/devices/system/edac, /proc/sys/kernel/tainted",
    cost="one pass over the kernel log, 1–20 ms",
    lane=shared_kernel_log.LANE,
    invalidating_words=("emounting", "forced", "Forced", "orce shutdown", "hutting down"),
    options={
        "ignore": Option([], f"list of kinds to ignore: {', '.join(kernel_patterns.KINDS)}", "ours: none is"),
        "often": Option(
            {},
            "{kind: lines since the last prolog from which it warns}",
            "ours: 1; of what is corrected anyway more: throttled 10, memory_corrected 24, pcie_corrected 100",
        ),
    },
)
