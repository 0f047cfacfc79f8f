"""Lays out what each rank did in the last capture, by the job's parallel groups or by its nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

from slurm_robust.localize.evidence import Capture, Evidence, RankCapture
from slurm_robust.localize.layout import LayoutError, ParallelLayout, fit
from slurm_robust.localize.ranks import name as ranks_named
from slurm_robust.localize.stacks.place import place_of
from slurm_robust.localize.stacks.process_tree import rank_frames, rank_process
from slurm_robust.report.pages.incident_view import RankActivity, RankCell, RankRow

_HELD = frozenset("TtDZX")
_WORST = (RankActivity.ENDED, RankActivity.HELD, RankActivity.MISSING, RankActivity.ELSEWHERE, RankActivity.WAITS)
MAX_CELLS = 4096
"""The number of ranks beyond which one cell stands for a group (a replica of the model, or a node)."""
MAX_GROUPS = 16384


def states_of(evidence: Evidence) -> dict[int, RankActivity]:
    """Return the state of every rank that is known or expected."""
    states = dict.fromkeys(range(evidence.world_size), RankActivity.MISSING)
    states |= dict.fromkeys(evidence.rank_nodes, RankActivity.MISSING)
    if evidence.captures:
        # Equal stacks are one object in an archive's frames: looked at once.
        known: dict[tuple[int, str], RankActivity] = {}
        for rank in evidence.captures[-1].ranks:
            states[rank.rank] = _state(rank, known)
    return states | dict.fromkeys((end.rank for end in evidence.exits if end.rank >= 0), RankActivity.ENDED)


def _state(rank: RankCapture, known: dict[tuple[int, str], RankActivity]) -> RankActivity:
    process = rank_process(rank)
    if process is None:
        return RankActivity.ENDED
    if process.state[:1] in _HELD:
        return RankActivity.HELD
    frames = rank_frames(rank)
    if not frames:
        return RankActivity.MISSING
    key = (id(frames), process.wchan)
    if key not in known:
        waits = place_of(frames, process.wchan).waits_for_peers
        known[key] = RankActivity.WAITS if waits else RankActivity.ELSEWHERE
    return known[key]


def rank_rows(evidence: Evidence, suspects: Set[int]) -> tuple[tuple[RankRow, ...], str]:
    """Return the rows of the grid, and what rows and groups are, as a sentence."""
    states = states_of(evidence)
    if not states:
        return (), ""
    layout = _layout(evidence, max(states) + 1)
    if layout is not None:
        rows, told = _by_layout(layout)
    else:
        by_node: dict[str, list[int]] = defaultdict(list)
        for rank in sorted(states):
            by_node[evidence.rank_nodes.get(rank, "")].append(rank)
        rows, told = _by_node(by_node)
    cells = sum(len(group) for _, groups in rows for group in groups)
    whole = cells > MAX_CELLS
    if whole:
        told += f" There are {cells:,} ranks: a cell is a whole group, and shows the worst of its ranks."
    shown = []
    for label, groups in rows:
        if whole:
            one = tuple(_merged(group, states, evidence.rank_nodes, suspects) for group in groups[:MAX_GROUPS])
            shown.append(RankRow(label, (one,)))
        else:
            cut = (tuple(_one(rank, states, evidence.rank_nodes, suspects) for rank in group) for group in groups)
            shown.append(RankRow(label, tuple(cut)))
    return tuple(shown), told


_Rows = list[tuple[str, list[tuple[int, ...]]]]


def _layout(evidence: Evidence, size: int) -> ParallelLayout | None:
    if not evidence.layout:
        return None
    try:
        return fit(evidence.layout, evidence.layout_order, size)
    except LayoutError:
        return None


def _by_layout(layout: ParallelLayout) -> tuple[_Rows, str]:
    """Return a row for each pipeline stage, in it a group for each replica: its ranks of one copy of the model."""
    inside = tuple(kind for kind in ("tp", "cp") if layout.sizes[kind] > 1)
    groups = [group.ranks for group in layout.groups(*inside)] if inside else [(r,) for r in range(layout.world_size)]
    stage_of: dict[int, int] = {}
    if layout.sizes["pp"] > 1:
        for pipeline in layout.groups("pp"):
            stage_of |= {rank: stage for stage, rank in enumerate(pipeline.ranks)}
    rows: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for ranks in groups:
        rows[stage_of.get(ranks[0], 0)].append(ranks)
    sizes = ", ".join(f"{kind} = {layout.sizes[kind]}" for kind in layout.kinds)
    what = "A row is a pipeline stage" if stage_of else "One row"
    groups_are = f"; cells that touch are one group of {' and '.join(inside)}" if inside else "; a cell is a rank"
    labelled = [(f"stage {stage}" if stage_of else "", sorted(of)) for stage, of in sorted(rows.items())]
    return labelled, f"{what}{groups_are} ({sizes or 'one rank'})."


def _by_node(by_node: Mapping[str, Sequence[int]]) -> tuple[_Rows, str]:
    groups = [tuple(ranks) for ranks in by_node.values()]
    if len(groups) <= 32:
        rows = [(node or "no node", [tuple(ranks)]) for node, ranks in by_node.items()]
        return rows, "A row is a node. The parallel layout is not known."
    return [("", groups)], "Cells that touch are a node. The parallel layout is not known."


def _one(rank: int, states: Mapping[int, RankActivity], nodes: Mapping[int, str], suspects: Set[int]) -> RankCell:
    state = states.get(rank, RankActivity.MISSING)
    where = f" on {nodes[rank]}" if rank in nodes else ""
    return RankCell(str(rank), state, rank in suspects, f"rank {rank}{where}: {state.value}")


def _merged(
    ranks: Sequence[int], states: Mapping[int, RankActivity], nodes: Mapping[int, str], suspects: Set[int]
) -> RankCell:
    of = {states.get(rank, RankActivity.MISSING) for rank in ranks}
    state = next(worst for worst in _WORST if worst in of)
    where = ", ".join(sorted({nodes[rank] for rank in ranks if rank in nodes})[:4])
    suspect = not suspects.isdisjoint(ranks)
    return RankCell(str(ranks[0]), state, suspect, f"{ranks_named(ranks)} on {where or 'no node'}: {state.value}")


def shown_capture(evidence: Evidence) -> Capture | None:
    """Return the last capture that holds a stack."""
    with_stacks = (c for c in reversed(evidence.captures) if any(rank.processes for rank in c.ranks))
    return next(with_stacks, None)
