"""Shows equal stacks once: classes of ranks that stand at the same place, and a merged tree for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slurm_robust.core.model import StackClass
from slurm_robust.localize import ranks as rank_sets
from slurm_robust.localize.evidence import Capture, CapturedProcess, StackFrame
from slurm_robust.localize.stacks.frames import by_identity, labels, main_thread, own_frames
from slurm_robust.localize.stacks.known_names import WaitsOn
from slurm_robust.localize.stacks.place import place_of
from slurm_robust.localize.stacks.process_tree import ProcessRole, rank_process, role_of

_STATES = {"T": "stopped", "t": "held by a debugger", "D": "uninterruptible (D)", "Z": "zombie", "X": "dead"}
_Labels = tuple[tuple[str, ...], tuple[str, ...]]


def _stack(process: CapturedProcess) -> _Labels:
    """Return the main thread as labels, and its labels without parts that differ from poll to poll.

    Without a stack, both are one line in brackets.
    """
    thread = main_thread(process.threads)
    tail = (f"[{_STATES[process.state]}]",) if process.state in _STATES else ()
    if thread is None or not thread.frames:
        nothing = tail or (f"[no stack: {process.error[:80] or 'not captured'}]",)
        return nothing, nothing
    shown, comparable = _labels(thread.frames, "")
    return ((*shown, *tail), (*comparable, *tail)) if tail else (shown, comparable)


@by_identity
def _labels(frames: tuple[StackFrame, ...], _: str) -> _Labels:
    own = own_frames(frames)
    shown, found = labels(own), place_of(frames, "")
    if not found.waits_for_peers and found.wait is not WaitsOn.LOCK:
        return shown, shown
    # A waiting thread goes round in a loop: the line in the call that waits, and the calls below it, are chance.
    kept = found.anchor - 1 if found.waits_for_peers else found.anchor
    return shown, (*shown[:kept], *labels(own[kept:], lines=False))


_Stacks = dict[ProcessRole, dict[tuple[str, ...], set[int]]]
_latest: list[tuple[Capture, _Stacks]] = []
"""The last capture, and its stacks: a verdict's classes and the tree beside it are made from the same stacks."""


def _stacks(capture: Capture) -> _Stacks:
    if not _latest or _latest[0][0] is not capture:
        _latest[:] = [(capture, _folded(capture))]
    return _latest[0][1]


def _folded(capture: Capture) -> _Stacks:
    found: _Stacks = {}
    # Content-addressed archives give equal stacks as one object, so their labels are made once.
    seen: dict[tuple[int, str, str], _Labels] = {}
    exact: dict[tuple[ProcessRole, tuple[str, ...]], set[tuple[str, ...]]] = {}
    for rank in capture.ranks:
        training = rank_process(rank)
        if training is None:
            found.setdefault(ProcessRole.RANK, {}).setdefault(("[no process]",), set()).add(rank.rank)
        for process in rank.processes:
            role = role_of(process, training)
            key = (id(process.threads), process.state, process.error)
            if key not in seen:
                seen[key] = _stack(process)
            shown, comparable = seen[key]
            found.setdefault(role, {}).setdefault(comparable, set()).add(rank.rank)
            exact.setdefault((role, comparable), set()).add(shown)
    # If all ranks stand at the same line, that line is shown.
    return {
        role: {next(iter(exact[role, s])) if len(exact.get((role, s), ())) == 1 else s: r for s, r in members.items()}
        for role, members in found.items()
    }


def classes(capture: Capture) -> tuple[StackClass, ...]:
    """Return the classes of the training processes, the largest first (ties: the lowest rank first)."""
    members = _stacks(capture).get(ProcessRole.RANK, {})
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), min(item[1])))
    return tuple(StackClass(rank_sets.fold(ranks), stack) for stack, ranks in ordered)


@dataclass
class Branch:
    """A function in the merged tree: the ranks that are in it, and the functions that it calls."""

    ranks: set[int] = field(default_factory=set)
    children: dict[str, Branch] = field(default_factory=dict)

    def join(self, ranks: set[int]) -> None:
        """Add these ranks to the function. A set is shared by all calls of a chain, so it is never changed in place."""
        if not self.ranks <= ranks:
            ranks = self.ranks | ranks
        self.ranks = ranks

    def in_order(self) -> list[tuple[str, Branch]]:
        """Return the children, the ones with the most ranks first (ties: the lowest rank first)."""
        return sorted(self.children.items(), key=lambda item: (-len(item[1].ranks), min(item[1].ranks)))


def merged(capture: Capture) -> list[tuple[ProcessRole, Branch]]:
    """Return all stacks as prefix trees of functions, one for each kind of process; bystanders are left out."""
    trees: list[tuple[ProcessRole, Branch]] = []
    for role, members in sorted(_stacks(capture).items(), key=lambda item: list(ProcessRole).index(item[0])):
        if role is ProcessRole.BYSTANDER:
            continue
        root = Branch()
        for stack, ranks in members.items():
            node = root
            node.join(ranks)
            for step in stack:
                node = node.children.setdefault(step, Branch())
                node.join(ranks)
        trees.append((role, root))
    return trees


def tree_json(capture: Capture) -> list[dict[str, Any]]:
    """Return the merged trees for tools.

    A stack may be a thousand calls deep, and many readers do not accept objects that are nested so deep. So calls are a
    flat list, callers before the functions that they call, each with the place of its caller in the list (-1 for none).
    """
    shown = []
    for role, root in merged(capture):
        calls: list[dict[str, Any]] = []
        todo = [(-1, step, child) for step, child in reversed(root.in_order())]
        while todo:
            caller, step, branch = todo.pop()
            calls.append({"function": step, "ranks": rank_sets.fold(branch.ranks), "caller": caller})
            todo += [(len(calls) - 1, below, child) for below, child in reversed(branch.in_order())]
        shown.append({"processes": role.value, "ranks": rank_sets.fold(root.ranks), "calls": calls})
    return shown


def render_tree(capture: Capture) -> str:
    """Return all stacks merged, for people: one line for each function, with its ranks; one tree for each process kind.

    A chain of functions with the same ranks is not indented further, only a fork is.
    """
    lines: list[str] = []
    for role, root in merged(capture):
        lines.append(f"{role.value} processes of {rank_sets.name(root.ranks)}")
        _render(root, lines)
    lines.extend(f"{node}: no answer" for node in capture.missing_nodes)
    return "\n".join(lines)


def _render(root: Branch, lines: list[str]) -> None:
    # Without recursion: a stack may be as deep as Python allows, and so deeper than the depth that is left here.
    todo = [(root, step, child, 1) for step, child in reversed(root.in_order())]
    while todo:
        node, step, child, depth = todo.pop()
        below = child.in_order()
        whole = len(below) == 1 and below[0][1].ranks is child.ranks
        ends_here = set() if whole else child.ranks - set().union(*(c.ranks for _, c in below))
        alone = len(node.children) == 1 and (child.ranks is node.ranks or child.ranks == node.ranks)
        mark = "" if alone and depth > 1 else f"  {{{rank_sets.fold(child.ranks)}}}"
        here = f"  <- {rank_sets.fold(ends_here)} here" if below and ends_here else ""
        lines.append(f"{'  ' * depth}{step}{mark}{here}")
        deeper = depth + 1 if len(node.children) > 1 else depth
        todo += [(child, name, grandchild, deeper) for name, grandchild in reversed(below)]
