"""Does the memory make errors, corrected or not?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine import check_state, counters
from slurm_robust.nodecheck.sources import small_files

_WINDOW_S = 86_400.0


def probe(context: Context, options: Options) -> Facts:
    """Read the counters of each memory controller; of its modules only if the controller counted anything."""
    counts: dict[str, int] = {}
    labels: dict[str, str] = {}
    controllers = small_files.matching(context.path("/sys/devices/system/edac/mc"), "mc[0-9]*")
    for mc in controllers:
        for kind in ("ce", "ue"):
            value = small_files.number(mc / f"{kind}_count")
            if value is not None:
                counts[f"{mc.name} {kind}"] = value
        if not any(counts.get(f"{mc.name} {kind}") for kind in ("ce", "ue")):
            continue
        for module in small_files.matching(mc, "dimm[0-9]*") or small_files.matching(mc, "rank[0-9]*"):
            name = f"{mc.name}/{module.name}"
            labels[name] = small_files.text(module / "dimm_label", 128) or name
            for kind in ("ce", "ue"):
                value = small_files.number(module / f"dimm_{kind}_count")
                if value is not None:
                    counts[f"{name} {kind}"] = value
    return {
        "controllers": len(controllers),
        "counts": counts,
        "labels": labels,
        **check_state.since(context, check.name),
    }


def _worst(counts: dict[str, int], kind: str, labels: dict[str, str]) -> str:
    """Return the module with most errors, by its printed label; its controller if no module is known."""
    named = {name[:-3]: count for name, count in counts.items() if name.endswith(kind) and "/" in name and count > 0}
    if not named:
        named = {name[:-3]: count for name, count in counts.items() if name.endswith(kind) and count > 0}
    worst = max(named, key=lambda name: named[name])
    return labels.get(worst, worst)


def judge(facts: Facts, options: Options) -> Finding:
    """Fail for repeated uncorrected errors in a boot: one may be a stray particle, a second one is a bad module."""
    counts = facts["counts"]
    if not counts:
        return Finding.skip("no_edac", "the kernel counts no memory errors here (no EDAC driver)")
    evidence = {"counts": {name: count for name, count in counts.items() if count}}
    uncorrected = sum(count for name, count in counts.items() if name.endswith(" ue") and "/" not in name)
    if uncorrected > 0:
        where = _worst(counts, " ue", facts["labels"])
        sentence = f"{uncorrected} uncorrected memory error{'s' if uncorrected > 1 else ''} in this boot ({where})"
        failed = 0 < options["fail_uncorrected"] <= uncorrected
        remedy = f"drain and have the module {where} replaced" if failed else "have the memory looked at if it repeats"
        return Finding(Status.FAIL if failed else Status.WARN, "memory_uncorrected", sentence, remedy, evidence)
    grown = counters.grown(facts, counts)
    new = {name: growth.delta for name, growth in grown.items() if name.endswith(" ce") and growth.delta > 0}
    most = max(new.values(), default=0)
    if most >= options["warn_corrected"] > 0:
        hours = max(growth.window_s for growth in grown.values()) / counters.HOUR_S
        where = _worst(new, " ce", facts["labels"])
        sentence = f"{most} corrected memory errors in {hours:.1f} h ({where})"
        remedy = f"have the module {where} replaced at the next maintenance"
        return Finding.warn("memory_corrected", sentence, remedy, {**evidence, "new": new})
    return Finding.passed("memory_sound", "no new memory errors", evidence)


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep the first run of a day, so that slow growth adds up."""
    return counters.hold(facts["kept"], counters.kept(facts), _WINDOW_S)


check = Check(
    **Check.parts_of(__name__),
    reads="/sys/devices/system/edac/mc/mc*/{ce,ue}_count, and those of the modules where there are any",
    cost="two small reads a memory controller, 1 ms",
    invalidating_words=(" UE ", "ncorrect"),
    lane="files",
    options={
        "warn_corrected": Option(
            10, "corrected errors of a module a day from which it warns; 0: never", "mcelog's limit: 10 in 24 h"
        ),
        "fail_uncorrected": Option(
            2,
            "uncorrected errors in one boot from which it fails; 0: never",
            "ours: the kernel sets the page of the first aside; a second is a bad module",
        ),
    },
)
