"""Do the InfiniBand and RoCE ports run at the speed they should?"""

from __future__ import annotations

from collections import Counter

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine import check_state
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude
from slurm_robust.nodecheck.sources import rdma

_REMEDY = "reseat or replace cable and transceiver; `mlxlink -d {} -c`, `iblinkinfo`"


def probe(context: Context, options: Options) -> Facts:
    """Rate and width of each port, and the fastest that this boot has seen."""
    return {"devices": rdma.devices(context), **check_state.since(context, check.name)}


def _judged(facts: Facts, options: Options) -> list[tuple[str, rdma.Device, rdma.Port]]:
    """Active ports whose driver reports a rate that means something."""
    return [
        (rdma.label(device, port), device, port)
        for device, port in rdma.all_ports(facts["devices"], options["ignore"])
        if rdma.is_active(port) and port["gbps"] > 0 and not device["fixed_rate"]
    ]


def _expected(name: str, device: rdma.Device, port: rdma.Port, options: Options) -> float:
    """Return the rate that the site wants of this port, Gb/s; 0 if it does not say."""
    wanted = rdma.setting(options["min_gbps"], name, device, port)
    return float(wanted) if isinstance(wanted, (int, float)) else 0.0


def _slow(facts: Facts, options: Options) -> Faults:
    best = check_state.best(facts)
    for name, device, port in _judged(facts, options):
        said = f"{name} runs at {port['gbps']:g} Gb/s" + (f" ({port['lanes']}X)" if port["lanes"] else "")
        remedy = _REMEDY.format(device["name"])
        wanted = _expected(name, device, port, options)
        if wanted:
            if port["gbps"] < wanted:
                yield Fault.fail("rate_below_expected", f"{said}, {wanted:g} are expected", remedy)
        elif port["gbps"] < best.get(name, 0.0):
            # Settings may have been changed while the node runs, but a link that has lost lanes looks the same.
            status = Status.FAIL if port["layer"] == "InfiniBand" else Status.WARN
            yield Fault(status, "rate_dropped", f"{said}, it ran at {best[name]:g} before", remedy)
        elif port["layer"] == "InfiniBand" and port["gbps"] < device["floor_gbps"]:
            sentence = f"{said}, the card ({device['card']}) does {device['max_gbps']}"
            yield Fault.fail("rate_far_below_card", sentence, remedy)


def _odd(facts: Facts, options: Options) -> Faults:
    """Return ports slower than most of their sisters, if neither site nor memory says their rate."""
    names = {(d["name"], p["port"]): name for name, d, p in _judged(facts, options)}
    for group in rdma.sisters((d, p) for _, d, p in _judged(facts, options)):
        usual, times = rdma.usual(port["gbps"] for _, port in group)
        if 2 * times <= len(group):
            continue
        for device, port in group:
            name = names[device["name"], port["port"]]
            if port["gbps"] < usual and not _expected(name, device, port, options):
                sentence = f"{name} runs at {port['gbps']:g} Gb/s, its sisters at {usual:g}"
                remedy = _REMEDY.format(device["name"])
                yield Fault.warn("rate_below_sisters", sentence, f"{remedy}; meant? rdma_rate.min_gbps")


def judge(facts: Facts, options: Options) -> Finding:
    """Fails for less than the site expects, than this boot has seen, or than any healthy link of that card runs at.

    A port that is slower than its sisters may be cabled so on purpose (storage beside compute): it warns.
    """
    judged = _judged(facts, options)
    evidence: Facts = {"gbps": {name: port["gbps"] for name, _, port in judged}}
    if not judged:
        return Finding.skip("no_rate", "no RDMA port is active and reports a rate", evidence)
    rates = Counter(port["gbps"] for _, _, port in judged)
    said = ", ".join(f"{times} at {gbps:g} Gb/s" for gbps, times in rates.most_common())
    healthy = Finding.passed("rates_good", f"RDMA ports: {said}", evidence)
    return conclude([*_slow(facts, options), *_odd(facts, options)], healthy, evidence)


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep the fastest rate of each port in this boot."""
    best = check_state.best(facts)
    for device, port in rdma.all_ports(facts["devices"]):
        if rdma.is_active(port) and port["gbps"] > 0:
            name = rdma.label(device, port)
            best[name] = max(best.get(name, 0.0), port["gbps"])
    new = {"boot_id": facts["boot_id"], "best": best}
    return None if new == facts["kept"] else new


check = Check(
    **Check.parts_of(__name__),
    reads="/sys/class/infiniband/*/ports/*/rate, and the rates that earlier runs of this boot saw",
    cost="nothing beyond rdma_ports, whose reading it shares",
    lane=rdma.LANE,
    options={
        "min_gbps": Option(
            {},
            "Gb/s that ports must run at: {port, device, board, model (`MT4129`) or `default`: Gb/s}",
            "ours: empty; what stands there replaces every other judgement of that port",
        ),
        "ignore": Option([], "list of devices, ports, interfaces or boards to ignore", "ours: none is"),
    },
)
