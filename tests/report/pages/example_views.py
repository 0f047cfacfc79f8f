"""Views for tests of pages: a calm month, a stormy one, an empty one, and one full of hostile names."""

from __future__ import annotations

import random

from report.simulated_month import simulated_month

from slurm_robust.report.pages.sections.trainings import trainings_section
from slurm_robust.report.pages.view import (
    BigNumber,
    FigureTable,
    IntervalPoint,
    IntervalsPlot,
    PartsBar,
    PartsPlot,
    PlotSeries,
    PoolLane,
    PoolStep,
    PoolTaking,
    ReportSection,
    ReportView,
    ShareBin,
    SharesPlot,
    StandbyPlot,
    TableColumn,
    Unit,
)

DAY_S = 86400.0
BEGIN_S = 1772323200.0
LOST = tuple(
    PlotSeries(key, label)
    for key, label in (
        ("queue", "queue"),
        ("start", "start"),
        ("detection", "detection"),
        ("diagnosis", "diagnosis"),
        ("restart", "restart"),
        ("recomputation", "recomputation"),
        ("checkpoint", "checkpoint stall"),
        ("slow", "slow steps"),
        ("unknown", "unknown"),
    )
)
STAGES = tuple(
    PlotSeries(key, label)
    for key, label in (
        ("detect", "until suspected"),
        ("capture", "capture and verdict"),
        ("stop", "end of the old step"),
        ("launch", "until it runs"),
        ("imports", "imports"),
        ("process_groups", "process groups"),
        ("load", "checkpoint load"),
        ("first_step", "until the first new step"),
    )
)


def month_view(seed: int = 3) -> ReportView:
    """A month with everything in it."""
    rng = random.Random(seed)
    facts, _ = simulated_month(seed, nodes=50, jobs=0, failures_per_day=0.02)
    ettr = {lineage: rng.uniform(0.9, 0.99) for lineage in {a.times.lineage for a in facts.attempts}}
    end_s = BEGIN_S + 30 * DAY_S
    step_s = DAY_S / 4
    bins = tuple(
        ShareBin(BEGIN_S + n * step_s, BEGIN_S + (n + 1) * step_s, () if 50 < n < 54 else _lost(rng, n == 31))
        for n in range(120)
    )
    ettr_rows = [(one.label, 0.02 * (9 - n) / 9, 120.0 * (9 - n)) for n, one in enumerate(LOST)]
    ettr_columns = (
        TableColumn("spent", "time went into"),
        TableColumn("share", "share", Unit.SHARE),
        TableColumn("gpu_hours", "GPU hours", Unit.GPU_HOURS),
    )
    roads = (
        PartsBar("restart in place", "214 times, median 42 s", (12, 3, 1.5, 0.6, 8, 6, 9, 2)),
        PartsBar("seat", "31 times, median 61 s", (14, 6, 2, 1.4, 16, 8, 12, 2)),
        PartsBar("spare in allocation", "12 times, median 49 s", (13, 5, 2, 0.4, 12, 6, 9, 2)),
        PartsBar("plain requeue", "2 times, median 4 min", (14, 6, 9, 121, 60, 12, 17, 3)),
    )
    road_columns = (
        TableColumn("road", "road"),
        TableColumn("n", "times", Unit.COUNT),
        *(TableColumn(s.key, s.label, Unit.SECONDS) for s in STAGES),
    )
    blame = (
        PlotSeries("node", "a node"),
        PlotSeries("shared", "something shared"),
        PlotSeries("program", "the program"),
        PlotSeries("either", "node or program"),
    )
    causes = (
        PartsBar("gpu_lost", "41, 1,204 GPU h", (41, 0, 0, 0)),
        PartsBar("nccl_timeout", "22, 640 GPU h", (0, 0, 0, 22)),
        PartsBar("storage", "9, 122 GPU h", (0, 9, 0, 0)),
        PartsBar("data_loader", "7, 80 GPU h", (0, 0, 7, 0)),
        PartsBar("(no line says it)", "5, 50 GPU h", (0, 0, 0, 5)),
    )
    points = (
        IntervalPoint("8–15 GPUs", 900.0, 2400.0, 9000.0, "2 failures"),
        IntervalPoint("16–31", 700.0, 1100.0, 1900.0, "14 failures"),
        IntervalPoint("32–63", None, None, None, "nothing ran"),
        IntervalPoint("64–127", 150.0, 210.0, 300.0, "38 failures"),
        IntervalPoint("128–255", 300.0, None, None, "no failure in 720 h"),
    )
    lanes = (
        PoolLane(
            "srobust-standby-train-gpu-8-0a1b2c",
            tuple(PoolStep(BEGIN_S + n * DAY_S, 2, rng.choice((2, 2, 2, 1, 0))) for n in range(30)),
            tuple(PoolTaking(BEGIN_S + rng.uniform(0, 30) * DAY_S, rng.random() > 0.2, "job 100") for _ in range(14)),
        ),
        PoolLane("srobust-standby-cpu", (PoolStep(BEGIN_S, 1, 1),)),
    )
    sections = (
        trainings_section(facts, ettr),
        ReportSection(
            "ettr",
            "How much of the time did training move forward?",
            "95.1 % of the GPU time was productive; recomputation after failures cost the most, 2.1 %.",
            SharesPlot(BEGIN_S, end_s, LOST, bins),
            FigureTable("Where the time went", ettr_columns, tuple(ettr_rows)),
            ("ETTR is productive time divided by all time since the job could have started.",),
        ),
        ReportSection(
            "restarts",
            "Where do restarts spend their seconds?",
            "Half of all restarts were back within 44 s; on the usual road, imports take the longest.",
            PartsPlot(
                STAGES, roads, Unit.SECONDS, whole=True, axis_title="Each bar is the median restart by that road."
            ),
            FigureTable("Median seconds", road_columns, tuple((b.label, 31, *b.parts) for b in roads)),
        ),
        ReportSection(
            "causes",
            "What broke?",
            "84 failures; lost GPUs are the most, 49 % of them.",
            PartsPlot(blame, causes, Unit.COUNT, axis_title="Failures"),
        ),
        ReportSection(
            "mttf",
            "How long does a job of a given size run between failures?",
            "A job on 64–127 GPUs runs 210 h on average (150 to 300 h, 95 % interval).",
            IntervalsPlot(points, Unit.HOURS, "Mean time to failure, hours (95 % interval)", "job size"),
        ),
        ReportSection(
            "standby",
            "Were there enough standby nodes?",
            "12 of 14 evictions found a standby node.",
            StandbyPlot(BEGIN_S, end_s, lanes),
        ),
    )
    numbers = (
        BigNumber("ettr", "ETTR", 0.951, Unit.SHARE, "of GPU time, 3 trainings"),
        BigNumber("incidents", "incidents", len(facts.incidents), Unit.COUNT, "2 under way"),
        BigNumber("lost_gpu_hours", "lost to failures", 1893.2, Unit.GPU_HOURS, "2.1 % of all"),
        BigNumber("median_back_s", "median time back", 44.0, Unit.SECONDS, "fault to first new step"),
    )
    doubts = ("Slurm's accounting was away: only what the journal knows is here.",)
    return ReportView(
        "How did the cluster do?", facts.cluster, BEGIN_S, end_s, end_s + 60, numbers, sections, "", 7200, doubts
    )


def _lost(rng: random.Random, storm: bool) -> tuple[float, ...]:
    base = [0.001, 0.002, 0.003, 0.002, 0.006, 0.012, 0.008, 0.01, 0.0]
    return tuple(b * rng.uniform(0.1, 2) * (4 if storm else 1) for b in base)
