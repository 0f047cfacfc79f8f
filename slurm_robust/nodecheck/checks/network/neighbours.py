"""Is there room in the neighbour (ARP) tables?

A flat network of thousands of nodes outgrows the kernel's default of 1024 entries: then addresses next door cannot be
reached, now this one, now that one (`neighbour: arp_cache: neighbor table overflow!`).
"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.checks.network.conntrack import column
from slurm_robust.nodecheck.engine import check_state, counters, windows
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude
from slurm_robust.nodecheck.sources import small_files

_TABLES = {"ipv4": "arp_cache", "ipv6": "ndisc_cache"}


def _entries(text: str) -> int | None:
    """Return the entries of the table: every CPU's line repeats the number of the whole table."""
    lines = text.splitlines()
    return column("\n".join(lines[:2]), "entries")


def probe(context: Context, options: Options) -> Facts:
    """Entries, the hard limit, and how often the table was full, of both families."""
    tables, counts = {}, {}
    for family, name in _TABLES.items():
        text = small_files.read_text(context.path("/proc/net/stat") / name)
        limit = small_files.count(context.path(f"/proc/sys/net/{family}/neigh/default/gc_thresh3"))
        tables[family] = [_entries(text), limit]
        if (full := column(text, "table_fulls")) is not None:
            counts[family] = full
    return {"tables": tables, "counts": counts, **check_state.since(context, check.name)}


def _faults(facts: Facts, options: Options) -> Faults:
    grown = windows.grown(facts, counters.HOUR_S)
    for family, (entries, limit) in facts["tables"].items():
        remedy = f"`sysctl net.{family}.neigh.default.gc_thresh3`: raise it, with gc_thresh1 and gc_thresh2 below it"
        if family in grown and grown[family].delta:
            sentence = f"the {family} neighbour table was full {grown[family].delta} times since an earlier run"
            yield Fault.warn("neighbour_overflow", sentence, remedy)
        elif entries is not None and limit and entries > options["warn_share"] * limit:
            sentence = f"{entries} of {limit} {family} neighbours are in use"
            yield Fault.warn("neighbours_filling", sentence, remedy)


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: known neighbours can be reached."""
    known = {family: table for family, table in facts["tables"].items() if None not in table}
    evidence = {"tables": facts["tables"], "table_fulls": facts["counts"]}
    said = ", ".join(f"{entries} of {limit} {family} neighbours" for family, (entries, limit) in known.items())
    if known:
        healthy = Finding.passed("neighbours_room", said, evidence)
    else:
        healthy = Finding.skip("no_table", "the neighbour tables' limits cannot be read", evidence)
    return conclude(_faults(facts, options), healthy, evidence)


remember = windows.remember_for(counters.HOUR_S)
check = Check(
    **Check.parts_of(__name__),
    reads="/proc/net/stat/{arp_cache,ndisc_cache}, /proc/sys/net/*/neigh/default/gc_thresh3",
    cost="four small reads",
    lane="files",
    options={
        "warn_share": Option(0.9, "share of gc_thresh3 above which it warns", "ours: a full table refuses entries")
    },
)
