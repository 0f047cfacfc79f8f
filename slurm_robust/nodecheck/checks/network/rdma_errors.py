"""Do links flap, or make errors faster than they may?

Counters of InfiniBand's own are narrow and stop at their limit: `link_downed` at 255, two others at 15. One that stands
there cannot grow, and says nothing until somebody clears it.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine import check_state, counters, windows
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude, some
from slurm_robust.nodecheck.sources import rdma, small_files

_IBTA = "InfiniBand's bound of 120 an hour (bit error rate 10^-12), as Oracle's and NVIDIA's documents cite it"
_DIAGS = "the limit of ibcheckerrs in infiniband-diags, here an hour's"
LIMITS: Mapping[str, tuple[int, int]] = {
    "symbol_error": (120, 65535),
    "link_error_recovery": (10, 255),
    "port_rcv_errors": (10, 65535),
    "port_rcv_remote_physical_errors": (100, 65535),
    "local_link_integrity_errors": (10, 15),
    "excessive_buffer_overrun_errors": (10, 15),
    "port_xmit_discards": (100, 65535),
    "port_xmit_constraint_errors": (100, 255),
    "port_rcv_constraint_errors": (100, 255),
    "VL15_dropped": (100, 65535),
}
"""Counter → events an hour above which it warns (`symbol_error` by `_IBTA`, the others by `_DIAGS`), and the count at
which it stops.

Not among them: `port_rcv_switch_relay_errors` (a switch's), `port_xmit_wait` (congestion, and healthy)."""
_SATURATED = {"link_downed": 255, **{name: most for name, (_, most) in LIMITS.items()}}
_DAY_S = 86_400.0
_REMEDIES = {
    "port_xmit_discards": "look for congestion and for a peer that does not drain: `perfquery -x`",
    "port_xmit_constraint_errors": "partition keys do not fit: `smpquery PKeyTable`",
    "port_rcv_constraint_errors": "partition keys do not fit: `smpquery PKeyTable`",
    "VL15_dropped": "management packets are dropped: look at the subnet manager",
    "excessive_buffer_overrun_errors": "the card cannot keep up: look at PCIe and firmware, then at the cable",
}
_CABLE = "clean, reseat or replace cable and transceiver; `mlxlink -d {} -c`"


def probe(context: Context, options: Options) -> Facts:
    """Read the error counters of every port, with those of earlier runs in this boot."""
    counts: dict[str, int] = {}
    ports = list(rdma.all_ports(rdma.devices(context), options["ignore"]))
    for device, port in ports:
        folder = context.path(rdma.CLASS) / device["name"] / "ports" / str(port["port"]) / "counters"
        for name in ("link_downed", *LIMITS):
            if (value := small_files.count(folder / name)) is not None:
                counts[f"{rdma.label(device, port)} {name}"] = value
    return {
        "ports": [rdma.label(device, port) for device, port in ports],
        "counts": counts,
        "spared": [
            rdma.label(device, port)
            for group in rdma.sisters(ports)
            for device, port in group
            if rdma.may_be_management(port, len(group))
        ],
        **check_state.since(context, check.name),
    }


def _flaps(facts: Facts, options: Options) -> Faults:
    hour, day = windows.grown(facts, counters.HOUR_S), windows.grown(facts, _DAY_S)
    for port in facts["ports"]:
        name = f"{port} link_downed"
        in_hour = hour[name].delta if name in hour and hour[name].window_s <= 1.5 * counters.HOUR_S else 0
        in_day = day[name].delta if name in day and day[name].window_s <= 1.5 * _DAY_S else 0
        remedy = _CABLE.format(port.partition("/")[0])
        if 0 < options["fail_flaps_per_hour"] <= in_hour:
            status = Status.WARN if port in facts["spared"] else Status.FAIL
            yield Fault(status, "link_flapping", f"{port} lost its link {in_hour} times within an hour", remedy)
        elif 0 < options["warn_flaps_per_day"] <= in_day:
            yield Fault.warn("link_flaps", f"{port} lost its link {in_day} times within a day", remedy)


def _errors(facts: Facts, options: Options) -> Faults:
    grown = windows.grown(facts, counters.HOUR_S)
    for counter, (usual, _) in LIMITS.items():
        limit = options["warn_per_hour"].get(counter, usual)
        if not isinstance(limit, (int, float)) or limit <= 0:
            continue
        names = {port: f"{port} {counter}" for port in facts["ports"]}
        rates = {port: windows.per_hour(grown[name]) for port, name in names.items() if name in grown}
        over = {port: rate for port, rate in rates.items() if rate > limit}
        if over:
            worst = max(over, key=lambda port: over[port])
            sentence = f"{counter} grows on {some(over)}: {over[worst]:.0f} an hour on {worst}, {limit:g} are allowed"
            remedy = _REMEDIES.get(counter, _CABLE.format(worst.partition("/")[0]))
            yield Fault.warn(counter.lower(), sentence, remedy)


def judge(facts: Facts, options: Options) -> Finding:
    """Fail for a link that flaps so often that no job survives, unless it may be for management; warn of other errors.

    A count from before the first run of this boot is not judged.
    """
    if not facts["counts"]:
        return Finding.skip("no_counters", "no RDMA port has error counters")
    full = [name for name, count in facts["counts"].items() if count == _SATURATED[name.rpartition(" ")[2]]]
    grown = {name: new.delta for name, new in windows.grown(facts, counters.HOUR_S).items() if new.delta}
    evidence: Facts = {"grown": grown, "at_their_limit": full}
    first = not windows.samples_of(facts["kept"], facts["boot_id"])
    said = "error counters are read for the first time in this boot" if first else "no link makes too many errors"
    if full:
        said += f"; {len(full)} stand at their limit and cannot grow (`perfquery -R` clears them)"
    healthy = Finding.passed("first_look" if first else "errors_low", said, evidence)
    return conclude([*_flaps(facts, options), *_errors(facts, options)], healthy, evidence)


remember = windows.remember_for(_DAY_S)
check = Check(
    **Check.parts_of(__name__),
    reads="/sys/class/infiniband/*/ports/*/counters, compared with the runs of the last hour and day",
    cost="eleven small reads a port, each of which asks the card's firmware: 1–10 ms",
    lane=rdma.LANE,
    options={
        "warn_per_hour": Option(
            {},
            "events an hour above which a counter warns, instead of "
            + ", ".join(f"{name} {limit}" for name, (limit, _) in LIMITS.items())
            + "; 0 passes a counter over",
            f"symbol_error: {_IBTA}; the others: {_DIAGS}",
            keys=tuple(LIMITS),
        ),
        "warn_flaps_per_day": Option(
            2, "losses of a link a day from which it warns; 0: never", "NVIDIA's InfiniBand bring-up procedure"
        ),
        "fail_flaps_per_hour": Option(
            5,
            "losses of a link an hour from which it fails; 0: never",
            "ours: a switch that restarts makes one or two; no job survives five",
        ),
        "ignore": Option([], "list of devices, ports, interfaces or boards to ignore", "ours: none is"),
    },
)
