"""Equal stacks told once: classes of ranks that stand at the same place, and a merged tree for people."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_robust.localize import ranks as rank_sets
from slurm_robust.localize.evidence import Capture, Frame, Process
from slurm_robust.localize.frames import labels, main_thread, own_frames
from slurm_robust.localize.memo import by_identity
from slurm_robust.localize.tree import Role, rank_process, role_of
from slurm_robust.model import StackClass

_STATES = {"T": "stopped", "t": "held by a debugger", "D": "uninterruptible (D)", "Z": "zombie", "X": "dead"}


def _stack(process: Process) -> tuple[str, ...]:
    """Its main thread as labels; one line in brackets where there is none."""
    thread = main_thread(process.threads)
    tail = (f"[{_STATES[process.state]}]",) if process.state in _STATES else ()
    if thread is None or not thread.frames:
        return tail or (f"[no stack: {process.error[:80] or 'not captured'}]",)
    told = _labels(thread.frames, "")
    return (*told, *tail) if tail else told


@by_identity
def _labels(frames: tuple[Frame, ...], _: str) -> tuple[str, ...]:
    return labels(own_frames(frames))


def _stacks(capture: Capture) -> dict[Role, dict[tuple[str, ...], set[int]]]:
    found: dict[Role, dict[tuple[str, ...], set[int]]] = {}
    # Content-addressed archives give equal stacks as the same object: it is worth making labels once.
    seen: dict[tuple[int, str, str], tuple[str, ...]] = {}
    for rank in capture.ranks:
        training = rank_process(rank)
        if training is None:
            found.setdefault(Role.RANK, {}).setdefault(("[no process]",), set()).add(rank.rank)
        for process in rank.processes:
            role = role_of(process, training)
            key = (id(process.threads), process.state, process.error)
            stack = seen.get(key)
            if stack is None:
                stack = seen[key] = _stack(process)
            found.setdefault(role, {}).setdefault(stack, set()).add(rank.rank)
    return found


def classes(capture: Capture) -> tuple[StackClass, ...]:
    """Classes of the training processes, the largest first (ties: the lowest rank first)."""
    members = _stacks(capture).get(Role.RANK, {})
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), min(item[1])))
    return tuple(StackClass(rank_sets.fold(ranks), stack) for stack, ranks in ordered)


@dataclass
class _Node:
    ranks: set[int] = field(default_factory=set)
    children: dict[str, _Node] = field(default_factory=dict)


def render_tree(capture: Capture) -> str:
    """All stacks merged, for people: a function a line, with the ranks that are in it; a tree for each kind of process.

    A chain of functions with the same ranks is not indented further: only a fork in the road is.
    """
    lines: list[str] = []
    for role, members in sorted(_stacks(capture).items(), key=lambda item: list(Role).index(item[0])):
        if role is Role.BYSTANDER:
            continue
        root = _Node()
        for stack, ranks in members.items():
            node = root
            node.ranks |= ranks
            for step in stack:
                node = node.children.setdefault(step, _Node())
                node.ranks |= ranks
        lines.append(f"{role.value} processes of {rank_sets.name(root.ranks)}")
        _render(root, 1, lines)
    lines.extend(f"{node}: no answer" for node in capture.missing_nodes)
    return "\n".join(lines)


def _render(node: _Node, depth: int, lines: list[str]) -> None:
    children = sorted(node.children.items(), key=lambda item: (-len(item[1].ranks), min(item[1].ranks)))
    for step, child in children:
        ends_here = child.ranks - set().union(*(c.ranks for c in child.children.values()))
        alone = len(children) == 1 and child.ranks == node.ranks
        mark = "" if alone and depth > 1 else f"  {{{rank_sets.fold(child.ranks)}}}"
        here = f"  <- {rank_sets.fold(ends_here)} here" if child.children and ends_here else ""
        lines.append(f"{'  ' * depth}{step}{mark}{here}")
        _render(child, depth + 1 if len(children) > 1 else depth, lines)
