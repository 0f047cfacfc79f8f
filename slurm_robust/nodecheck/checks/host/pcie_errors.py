"""Do cards or slots make PCIe errors, and how fast?"""

from __future__ import annotations

import re

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import check_state, counters
from slurm_robust.nodecheck.sources import small_files

_TOTALS = re.compile(r"^TOTAL_ERR_(COR|NONFATAL|FATAL) (\d{1,18})$", re.MULTILINE)
_FILES = ("aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal")
_MAX_DEVICES = 2000
_WINDOW_S = 3600.0


def probe(context: Context, options: Options) -> Facts:
    """Read the kernel's AER counters of each device; devices without counts are left out."""
    counts: dict[str, int] = {}
    devices = 0
    for folder in small_files.matching(context.path("/sys/bus/pci/devices"), "*:*")[:_MAX_DEVICES]:
        first = small_files.read_text(folder / _FILES[0], 4096)
        if not first:
            continue
        devices += 1
        for text in (first, *(small_files.read_text(folder / name, 4096) for name in _FILES[1:])):
            for kind, value in _TOTALS.findall(text):
                counts[f"{folder.name} {kind}"] = int(value)
    return {"devices": devices, "counts": counts, **check_state.since(context, check.name)}


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: links recover, and the check of the card sees a link that did not."""
    if not facts["devices"]:
        return Finding.skip("no_aer", "the kernel counts no PCIe errors here (no AER)")
    grown = counters.grown(facts)
    lost = {name: new.delta for name, new in grown.items() if not name.endswith(" COR") and new.delta > 0}
    if lost:
        worst = max(lost, key=lambda name: lost[name])
        device, _, kind = worst.partition(" ")
        sentence = f"{lost[worst]} uncorrected PCIe errors ({kind.lower()}) at {device} since the last run"
        return Finding.warn("pcie_uncorrected", sentence, f"`lspci -vvs {device}`; reseat the card", {"new": lost})
    many = {
        name: new
        for name, new in grown.items()
        if name.endswith(" COR")
        and new.delta >= options["min_corrected"]
        and new.per_hour >= options["warn_corrected_per_hour"]
    }
    if many:
        worst = max(many, key=lambda name: many[name].per_hour)
        device = worst.partition(" ")[0]
        sentence = f"{many[worst].per_hour:.0f} corrected PCIe errors an hour at {device}"
        evidence = {"per_hour": {name: round(new.per_hour) for name, new in many.items()}}
        remedy = f"`lspci -vvs {device}`; reseat the card and its riser if it goes on"
        return Finding.warn("pcie_corrected", sentence, remedy, evidence)
    return Finding.passed("pcie_quiet", f"no new PCIe errors at {facts['devices']} devices")


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep the first run of an hour."""
    return counters.hold(facts["kept"], counters.kept(facts), _WINDOW_S)


check = Check(
    **Check.parts_of(__name__),
    reads="/sys/bus/pci/devices/*/aer_dev_{correctable,nonfatal,fatal}",
    cost="three small reads a PCIe device, 5–15 ms",
    lane="files",
    options={
        "warn_corrected_per_hour": Option(
            3600.0,
            "a device's corrected errors an hour from which it warns",
            "ours: one a second, each repeated by the link",
        ),
        "min_corrected": Option(100, "and at least so many", "ours: a few in a short window are no rate"),
    },
)
