"""Pages for tests: the month of a simulated cluster, one full of hostile names, and an incident with its folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
from localize.localize_scenes import ALL_REDUCE, BACKWARD, WORKER_LOCK, in_loader, process, rank, waiting
from simulated_month import simulated_month

from slurm_robust.core.model import Conclusion, Incident, Plan, Road, Signal, SignalKind, Suspect, Verdict
from slurm_robust.localize import circumstances
from slurm_robust.localize.circumstances import SavedRound
from slurm_robust.localize.evidence import Evidence, RankCapture, RankExit
from slurm_robust.localize.stacks.archive import NodeArchive, encode
from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.all_figures import figures_of
from slurm_robust.report.pages.assemble import report_view
from slurm_robust.report.pages.view import ReportView

HOSTILE = (
    "\"'><script>alert(1)</script>\u202e<img src=x onerror=alert(1)>\x00\x1b[31m\ud800=cmd|'/c calc'!A1"
    "</svg></style>]]>-->&amp;`|\n**x** [a](javascript:alert(1)) https://example.invalid/"
)
INCIDENT = "1234-r0-1795228470"
AT_S = 1795228470.0


def month_facts(seed: int = 3, **others: object) -> Facts:
    """A month of fifty nodes, unless said otherwise."""
    return simulated_month(seed, **{"nodes": 50, "jobs": 50, "failures_per_day": 0.02, **others})[0]


def view_of(facts: Facts, offset_s: int = 7200) -> ReportView:
    """The report of these facts."""
    return report_view(facts, figures_of(facts), "", offset_s)


def hostile_facts() -> Facts:
    """A month in which every text that comes from outside is hostile."""
    facts, bad = month_facts(nodes=12), HOSTILE
    return replace(
        facts,
        cluster=bad,
        doubts=(bad,) * 3,
        attempts=tuple(
            replace(a, name=bad, user=bad, times=replace(a.times, lineage=bad, job=bad)) for a in facts.attempts
        ),
        incidents=tuple(
            replace(
                i,
                **dict.fromkeys(("user", "lineage", "category", "road", "reason", "blame", "outcome", "kind"), bad),
                **dict.fromkeys(("suspects", "evict"), (bad,)),
            )
            for i in facts.incidents
        ),
        drains=tuple(replace(d, node=bad, reason=bad) for d in facts.drains),
        pools=tuple(replace(p, pool=bad, partition=bad) for p in facts.pools),
    )


def incident_folder(place: Path, ranks: int = 32, words: str = "") -> Path:
    """A job's folder with one incident of so many ranks, eight a node; n0003 did not answer. `words`: in every text."""
    folder = place / "slurm-robust-1234" / INCIDENT
    (folder / "stacks-1").mkdir(parents=True)
    nodes: dict[str, list[RankCapture]] = {}
    for number in range(ranks):
        node = f"n{number // 8:04}"
        if number == 17:
            one = in_loader(number, process(WORKER_LOCK), node=node)
        elif number == 5:
            one = rank(number, process(ALL_REDUCE, state="T"), node=node)
        else:
            one = waiting(number, node=node) if number % 3 else rank(number, process(BACKWARD), node=node)
        nodes.setdefault(node, []).append(one)
    for node, of in nodes.items():
        if node != "n0003":
            archive = encode(NodeArchive(node, AT_S + 7, 1, tuple(of)))
            (folder / "stacks-1" / f"{node}.json.gz").write_bytes(archive)
    where = {number: f"n{number // 8:04}" for number in range(ranks)}
    evidence = Evidence(ranks, where, exits=(RankExit(9, "n0001", AT_S, exit_code=1),))
    rounds = [SavedRound(1, AT_S + 7, ("n0003",))]
    (folder / "circumstances.json").write_bytes(circumstances.encode(evidence, rounds, {}))
    (folder / "layout.txt").write_text("tp=2,pp=4")
    (folder / "incident.json").write_bytes(msgspec.json.encode(incident(words)))
    finding = {"test": "alignment", "kind": "node", "nodes": ["n0002"], "reason": f"gpu 3 computed other bits {words}"}
    test = {"verdict": "failed", "nodes": ["n0001", "n0002"], "findings": [finding]}
    test["stages"] = [{"name": "start", "took_s": 0.31}, {"name": "alignment", "took_s": 4.2}]
    (folder / "tests-1.json").write_text(json.dumps(test))
    story = [("suspected", "ranks 0-31 have made no step for 10 s"), ("decided", f"seat: without n0002 {words}")]
    lines = [{"at_s": AT_S + n, "kind": k, "text": t, "incident": INCIDENT} for n, (k, t) in enumerate(story)]
    (folder.parent / "story.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def incident(words: str = "") -> Incident:
    """A hang: rank 17 waits for its data loader."""
    words = words.encode("utf-8", "replace").decode()
    stamps = {"fault": -4, "suspected": 6.1, "captured": 7, "localised": 11, "decided": 11.2, "stopped": 14}
    stamps |= {"running": 15.3, "imports_done": 31, "process_groups_ready": 40, "checkpoint_loaded": 52}
    times = {key: AT_S + s for key, s in (stamps | {"first_new_step": 54}).items()}
    why = f"rank 17 on n0002 waits for its data loader, and the other ranks wait for it {words}".strip()
    suspect = Suspect("n0002", (17,), 0.93, f"its data loader waits for a lock {words}".strip())
    return Incident(
        id=INCIDENT,
        job="1234",
        attempt="dev.1234.r0.1795228000",
        opened_at_s=AT_S + 6.1,
        signals=(Signal(SignalKind.SILENCE, AT_S + 6.1, "supervisor", f"no rank has made a step for 10 s {words}"),),
        times=times,
        verdict=Verdict(Conclusion.CULPRIT, why, (suspect,), corroborated=True, detail="two captures show no motion"),
        plan=Plan(Road.SEAT, f"n0002 is left out {words}".strip(), evict=("n0002",)),
        outcome=f"trains again {words}".strip(),
        cause={"category": "data_loader", "line": f"DataLoader worker (pid 9) is killed by signal: Killed {words}"},
    )
