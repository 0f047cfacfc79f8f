"""Is there room for new connections in the firewall's table?

When it is full, the kernel drops the first packet of every new connection (nf_conntrack-sysctl).
"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import check_state, counters, windows
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude
from slurm_robust.nodecheck.sources import small_files


def column(text: str, name: str) -> int | None:
    """Return the sum over all CPUs of one column of a file in /proc/net/stat, whose cells are hexadecimal."""
    head, *lines = text.splitlines() or [""]
    titles = head.split()
    if name not in titles:
        return None
    numbers = [
        small_files.hexadecimal(cells[titles.index(name)])
        for line in lines
        if len(cells := line.split()) == len(titles)
    ]
    return sum(number for number in numbers if number is not None) if numbers else None


def probe(context: Context, options: Options) -> Facts:
    """Entries, limit, and packets dropped."""
    folder = context.path("/proc/sys/net/netfilter")
    text = small_files.read_text(context.path("/proc/net/stat/nf_conntrack"))
    counts = {name: count for name in ("drop", "early_drop") if (count := column(text, name)) is not None}
    return {
        "count": small_files.count(folder / "nf_conntrack_count"),
        "max": small_files.count(folder / "nf_conntrack_max"),
        "counts": counts,
        **check_state.since(context, check.name),
    }


def _faults(facts: Facts, options: Options) -> Faults:
    remedy = "`sysctl net.netfilter.nf_conntrack_max`: raise it, or take the fabric's traffic out of tracking"
    if facts["count"] > options["warn_share"] * facts["max"]:
        sentence = f"{facts['count']} of {facts['max']} tracked connections are in use"
        yield Fault.warn("conntrack_filling", sentence, remedy)
    grown = windows.grown(facts, counters.HOUR_S)
    dropped = sum(growth.delta for growth in grown.values())
    if dropped > options["warn_drops_per_hour"]:
        yield Fault.warn("conntrack_drops", f"connection tracking dropped {dropped} packets", remedy)


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: open connections stay open."""
    evidence = {name: facts[name] for name in ("count", "max", "counts")}
    if facts["count"] is None or not facts["max"]:
        return Finding.skip("no_conntrack", "connections are not tracked here", evidence)
    said = f"{facts['count']} of {facts['max']} tracked connections are in use"
    return conclude(_faults(facts, options), Finding.passed("conntrack_room", said, evidence), evidence)


remember = windows.remember_for(counters.HOUR_S)
check = Check(
    **Check.parts_of(__name__),
    reads="/proc/sys/net/netfilter/nf_conntrack_{count,max}, /proc/net/stat/nf_conntrack",
    cost="three small reads",
    lane="files",
    options={
        "warn_share": Option(0.9, "share in use above which it warns", "ours: a large job opens thousands"),
        "warn_drops_per_hour": Option(100, "packets dropped within the last hour above which it warns", "ours"),
    },
)
