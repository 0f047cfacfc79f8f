"""Do the cards below default routes, bonds and RoCE make errors, lose packets, or flap?"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import check_state, counters, windows
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude
from slurm_robust.nodecheck.sources import network_links, small_files

LIMITS: Mapping[str, tuple[int, str]] = {
    "rx_crc_errors": (100, "rx_packets"),
    "rx_frame_errors": (100, "rx_packets"),
    "rx_errors": (100, "rx_packets"),
    "tx_errors": (100, "tx_packets"),
    "tx_carrier_errors": (10, ""),
    "rx_missed_errors": (10_000, "rx_packets"),
    "rx_fifo_errors": (10_000, "rx_packets"),
    "tx_dropped": (10_000, "tx_packets"),
}
"""Counter → events an hour above which it warns, and the packets of which they must be more than `min_share`. Left out
are `rx_dropped`, in which the kernel counts every packet of a protocol without a listener, and `collisions`, which only
half duplex has."""
_DAY_S = 86_400.0


def probe(context: Context, options: Options) -> Facts:
    """Read the statistics of each card, with those of earlier runs in this boot."""
    wanted = [*network_links.routed(context), *map(str, options["interfaces"]), *network_links.roce(context)]
    counts: dict[str, int] = {}
    cards = network_links.cards(network_links.stack(context, wanted))
    for name in cards:
        folder = context.path(network_links.NET) / name
        files = {counter: folder / "statistics" / counter for counter in (*LIMITS, "rx_packets", "tx_packets")}
        # Twice a flap: down and up; `carrier_down_count` (Linux 4.16) counts the one way only.
        files["carrier_down_count"] = folder / "carrier_down_count"
        files["carrier_changes"] = folder / "carrier_changes"
        for counter, path in files.items():
            if (value := small_files.count(path)) is not None:
                counts[f"{name} {counter}"] = value
    return {"cards": cards, "counts": counts, **check_state.since(context, check.name)}


def _errors(facts: Facts, options: Options) -> Faults:
    grown = windows.grown(facts, counters.HOUR_S)
    for name in facts["cards"]:
        for counter, (usual, packets) in LIMITS.items():
            limit = options["warn_per_hour"].get(counter, usual)
            growth, all_ = grown.get(f"{name} {counter}"), grown.get(f"{name} {packets}")
            if growth is None or not isinstance(limit, (int, float)) or limit <= 0:
                continue
            if windows.per_hour(growth) <= limit or (all_ and growth.delta < options["min_share"] * all_.delta):
                continue
            sentence = f"{name} had {growth.delta} {counter} within {growth.window_s / 60:.0f} min"
            remedy = f"`ethtool -S {name}`; look at cable, transceiver and switch port"
            yield Fault.warn(counter, sentence, remedy)


def _flaps(facts: Facts, options: Options) -> Faults:
    grown = windows.grown(facts, _DAY_S)
    for name in facts["cards"]:
        down, changes = grown.get(f"{name} carrier_down_count"), grown.get(f"{name} carrier_changes")
        window_s = (down or changes or counters.Growth(0, 1.0)).window_s
        times = down.delta if down else (changes.delta // 2 if changes else 0)
        if window_s <= 1.5 * _DAY_S and 0 < options["warn_flaps_per_day"] <= times:
            sentence = f"{name} lost its link {times} times within {window_s / 3600:.0f} h"
            remedy = f"read `dmesg | grep {name}`; look at cable, transceiver and switch port"
            yield Fault.warn("link_flaps", sentence, remedy)


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: lost packets are sent again."""
    if not facts["counts"]:
        return Finding.skip("no_counters", "no interface that is needed stands on a card with statistics")
    grown = windows.grown(facts, counters.HOUR_S)
    evidence: Facts = {
        "cards": facts["cards"],
        "grown": {name: g.delta for name, g in grown.items() if g.delta and not name.endswith("_packets")},
    }
    first = not windows.samples_of(facts["kept"], facts["boot_id"])
    said = "statistics are read for the first time in this boot" if first else "no card loses packets or its link"
    healthy = Finding.passed("first_look" if first else "errors_low", said, evidence)
    return conclude([*_flaps(facts, options), *_errors(facts, options)], healthy, evidence)


remember = windows.remember_for(_DAY_S)
check = Check(
    **Check.parts_of(__name__),
    reads="/sys/class/net/*/{statistics,carrier_changes,carrier_down_count}, compared with the runs of the last day",
    cost="twelve small reads a card, 1 ms",
    lane="files",
    options={
        "interfaces": Option([], "list of further interfaces to look at", "ours: empty"),
        "warn_per_hour": Option(
            {},
            "events an hour above which a counter warns, instead of "
            + ", ".join(f"{name} {limit}" for name, (limit, _) in LIMITS.items())
            + "; 0 passes a counter over",
            "ours: a good cable has none at all, a full receive ring loses thousands",
            keys=tuple(LIMITS),
        ),
        "min_share": Option(1e-6, "share of all packets below which errors are no fault", "ours: less costs no speed"),
        "warn_flaps_per_day": Option(
            3, "losses of the link a day from which it warns; 0: never", "ours: a switch that restarts makes one or two"
        ),
    },
)
