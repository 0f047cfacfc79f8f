"""Shows whether there were enough standby nodes."""

from __future__ import annotations

from collections import defaultdict

from slurm_robust.daemon.store.attempt_ledger import PoolSize
from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.all_figures import Figures
from slurm_robust.report.figures.standby_use import needs_nodes
from slurm_robust.report.pages.formats import count, moment, share
from slurm_robust.report.pages.sections.cut import axis_from_s
from slurm_robust.report.pages.view import (
    Cell,
    FigureTable,
    PoolLane,
    PoolStep,
    PoolTaking,
    ReportSection,
    StandbyPlot,
    TableColumn,
    Unit,
)

MAX_LANES = 8
COLUMNS = (
    TableColumn("pool", "pool"),
    TableColumn("partition", "partition"),
    TableColumn("wanted", "nodes wanted", Unit.COUNT),
    TableColumn("held_hours", "held, node hours", Unit.NODE_HOURS),
    TableColumn("held_gpu_hours", "held, GPU hours", Unit.GPU_HOURS),
    TableColumn("short_hours", "hours with too few", Unit.HOURS),
)


def standby_section(facts: Facts, figures: Figures) -> ReportSection:
    """Return the section of the pools over time, the recoveries that took from them, and the use of one more node."""
    question = "Were there enough standby nodes?"
    use = figures.standby
    if not use.pools:
        needed = f" {count(use.needed, 'node')} had to be replaced." if use.needed else ""
        return ReportSection("standby", question, f"No standby pool was there in this time.{needed}")
    by_pool: dict[str, list[PoolSize]] = defaultdict(list)
    for size in sorted(facts.pools, key=lambda row: row.at_s):
        by_pool[size.pool].append(size)
    takings = tuple(
        PoolTaking(i.times.get("accepted", i.opened_at_s), len(i.standby) >= len(i.evict), _told(i.opened_at_s, i.job))
        for i in facts.incidents
        if needs_nodes(i)
    )
    order = sorted(by_pool, key=lambda pool: (-by_pool[pool][-1].wanted, pool))[:MAX_LANES]
    # If there are several pools, the journal does not say which one a recovery took from.
    lanes = tuple(
        PoolLane(
            pool, tuple(PoolStep(s.at_s, s.wanted, len(s.nodes)) for s in by_pool[pool]), takings if number == 0 else ()
        )
        for number, pool in enumerate(order)
    )
    rows: list[tuple[Cell, ...]] = [
        (p.pool, p.partition, p.wanted, p.held_hours, p.held_gpu_hours, p.short_hours) for p in use.pools
    ]
    answer = "No recovery needed another node."
    if use.hit_rate is not None:
        came = f"came from a pool ({share(use.hit_rate)})"
        answer = f"{use.hits:,} of {count(use.needed, 'node')} that had to be replaced {came}."
    notes = [use.another.sentence] if use.another is not None else []
    if len(by_pool) > 1 and takings:
        notes.append("The recoveries stand in the first lane; the journal does not say which pool they took from.")
    if len(by_pool) > MAX_LANES:
        notes.append(f"The plot shows the {MAX_LANES} largest of {len(by_pool)} pools.")
    table = FigureTable("Standby pools", COLUMNS, tuple(rows))
    plot = StandbyPlot(axis_from_s(facts, (pool.at_s for pool in facts.pools)), facts.to_s, lanes)
    return ReportSection("standby", question, answer, plot, table, tuple(notes))


def _told(at_s: float, job: str) -> str:
    return f"{moment(at_s, year=False)} job {job}"
