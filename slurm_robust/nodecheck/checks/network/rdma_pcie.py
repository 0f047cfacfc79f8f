"""Have the RDMA cards all the PCIe that card and slot can give, and is it free of errors?

A network card does not save power by a slower link, as GPUs do: what it has, it has at every moment.
"""

from __future__ import annotations

import re
from pathlib import Path

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import check_state, counters, windows
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude
from slurm_robust.nodecheck.sources import pci, rdma, small_files

_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s")
_AER = {
    "aer_dev_fatal": "TOTAL_ERR_FATAL",
    "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL",
    "aer_dev_correctable": "TOTAL_ERR_COR",
}
_MAX_WIDTH = 32


def probe(context: Context, options: Options) -> Facts:
    """Speed and width of each card's link with what card and slot can do, and its PCIe error counters."""
    cards, counts = [], {}
    for device in rdma.devices(context):
        own = {device["name"], device["board"], device["pci"]} - {""}
        if device["kind"] != "card" or not device["pci"] or not own.isdisjoint(map(str, options["ignore"])):
            continue
        function = context.path("/sys/bus/pci/devices") / device["pci"]
        now, card, slot = _link(function, "current"), _link(function, "max"), _slot(function)
        cards.append(
            {
                "name": device["name"],
                "group": [device["type"], device["board"]],
                "now": now,
                "can": [min(ours, theirs or ours) for ours, theirs in zip(card, slot, strict=True)],
            }
        )
        for name, total in _AER.items():
            match = re.search(rf"^{total} (\d{{1,18}})$", small_files.read_text(function / name, 4096), re.MULTILINE)
            if match:
                counts[f"{device['name']} {name}"] = int(match[1])
    return {"cards": cards, "counts": counts, **check_state.since(context, check.name)}


def _link(function: Path, which: str) -> list[float]:
    """Return GT/s and lanes, zero if the function does not tell."""
    match = _SPEED.match(small_files.word(function / f"{which}_link_speed"))
    width = small_files.count(function / f"{which}_link_width") or 0
    # 255 is what a function says that does not answer.
    return [float(match[1]) if match else 0.0, float(width if width <= _MAX_WIDTH else 0)]


def _slot(function: Path) -> list[float]:
    """Return the speed and lanes of the port above; zeros if there is none."""
    try:
        above = function.resolve().parent
    except (OSError, RuntimeError):
        return [0.0, 0.0]
    return _link(above, "max") if pci.ADDRESS.match(above.name) else [0.0, 0.0]


def _less(facts: Facts) -> Faults:
    """Cards whose link is less than it could be, and less than that of most cards like it."""
    best = check_state.best(facts)
    groups: dict[str, list[Facts]] = {}
    for card in facts["cards"]:
        groups.setdefault(str(card["group"]), []).append(card)
    for group in groups.values():
        for card in group:
            for index, (what, unit) in enumerate((("speed", "GT/s"), ("width", "lanes"))):
                now, can = card["now"][index], card["can"][index]
                dropped = now < best.get(f"{card['name']} {what}", 0.0)
                alike = [other for other in group if other["now"][index] <= now]
                if not 0 < now < can or (not dropped and 2 * len(alike) > len(group) > 1):
                    continue
                sentence = f"PCIe {what} of {card['name']} is {now:g} {unit}, card and slot can do {can:g}"
                remedy = "reseat the card; look at riser and BIOS setting: `lspci -vv | grep LnkSta`"
                yield Fault.warn(f"pcie_{what}", sentence, remedy)


def _errors(facts: Facts, options: Options) -> Faults:
    grown = windows.grown(facts, counters.HOUR_S)
    for name, growth in grown.items():
        device, _, file = name.partition(" ")
        limit = options["warn_correctable_per_hour"] if file == "aer_dev_correctable" else 0.0
        rate = windows.per_hour(growth)
        if rate > limit and growth.delta:
            kind = file.removeprefix("aer_dev_")
            sentence = f"{device} had {growth.delta} {kind} PCIe errors within {growth.window_s / 60:.0f} min"
            remedy = "read `dmesg | grep AER`; reseat the card, look at riser and switch"
            yield Fault.warn(f"pcie_{kind}_errors", sentence, remedy)


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: a narrow link costs speed, and some slots are narrow by design.

    If all cards alike have less than they could, the machine is built or set up so.
    """
    evidence = {"links": {card["name"]: [card["now"], card["can"]] for card in facts["cards"]}}
    if not any(card["now"][0] for card in facts["cards"]):
        return Finding.skip("no_link", "no RDMA card reports its PCIe link", evidence)
    links = sorted({f"{card['now'][0]:g} GT/s x{card['now'][1]:g}" for card in facts["cards"]})
    healthy = Finding.passed("pcie_good", f"PCIe of RDMA cards: {', '.join(links)}", evidence)
    return conclude([*_less(facts), *_errors(facts, options)], healthy, evidence)


def remember(facts: Facts, options: Options) -> Facts:
    """Keep the best link of each card in this boot, and its error counts."""
    best = check_state.best(facts)
    for card in facts["cards"]:
        for what, now in zip(("speed", "width"), card["now"], strict=True):
            name = f"{card['name']} {what}"
            best[name] = max(now, best.get(name, 0.0))
    return {"boot_id": facts["boot_id"], "best": best, **windows.kept(facts, counters.HOUR_S)}


check = Check(
    **Check.parts_of(__name__),
    reads="/sys/bus/pci/devices/*/{current,max}_link_{speed,width}, aer_dev_*, of RDMA cards and the port above each",
    cost="nine small reads a card, 1 ms",
    lane=rdma.LANE,
    options={
        "warn_correctable_per_hour": Option(
            1000.0, "corrected PCIe errors an hour above which it warns", "ours: PCIe repeats a few without loss"
        ),
        "ignore": Option([], "list of devices, boards or PCI addresses to ignore", "ours: none is"),
    },
)
