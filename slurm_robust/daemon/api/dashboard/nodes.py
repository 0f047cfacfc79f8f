"""Draws thousands of nodes as a grid: a square each, by hardware class, in the order of their names. Pure.

Squares keep their places, so that a lost rack or switch is seen as a block. Healthy nodes are pale.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

from slurm_robust.daemon.api.dashboard.pieces import Row
from slurm_robust.daemon.api.dashboard.tree import Element, Section, element, visible
from slurm_robust.policy.cluster.node_states import NodeState

_DRAINED = NodeState.DRAINED.value
CLASSES_MAX = 12
"""Hardware classes that have a grid of their own; the nodes of all others share one."""
MANY, VERY_MANY = 200, 2000
"""The numbers of nodes from which on the squares are smaller."""
FOREIGN = "foreign"
MEANINGS = {
    NodeState.ACTIVE.value: "runs a job",
    NodeState.IDLE.value: "idle",
    NodeState.STANDBY.value: "standby",
    NodeState.SEAT.value: "held for a job",
    NodeState.QUARANTINE.value: "quarantine",
    NodeState.DRAINED.value: "drained by srobust",
    FOREIGN: "drained or down otherwise",
}
"""Class of a square → its meaning, in the order of the legend."""


def shown_state(node: Row) -> str:
    """Return the class of a node's square."""
    state = node.get("node_state") or node.get("room")
    if state == _DRAINED:
        return _DRAINED if node.get("owner") == "srobust" else FOREIGN
    return state if state in MEANINGS else FOREIGN


def legend(nodes: list[Row]) -> dict[str, Element]:
    """Return how many nodes there are in each state."""
    counts = Counter(map(shown_state, nodes))
    return {
        state: element(
            "li",
            element("i", class_=f"square {state}", aria_hidden="true"),
            element("b", f"{counts[state]:,}"),
            f" {meaning}",
            class_="none" if not counts[state] else None,
            data_key=state,
        )
        for state, meaning in MEANINGS.items()
    }


def grids(nodes: list[Row]) -> list[Section]:
    """Return a section for each hardware class, its rows the squares."""
    groups: dict[str, list[Row]] = {}
    for node in nodes:
        groups.setdefault(class_name(str(node.get("gres", "")), tuple(node.get("partitions", ()))), []).append(node)
    names = sorted(groups, key=lambda name: (-len(groups[name]), name))
    for name in names[CLASSES_MAX:]:
        groups.setdefault("other classes", []).extend(groups.pop(name))
    sections = []
    for number, (name, members) in enumerate(sorted(groups.items(), key=lambda g: (g[0] == "other classes", g[0]))):
        members.sort(key=lambda node: natural(node["name"]))
        id_ = f"grid-{number}"
        size = "tiny" if len(members) >= VERY_MANY else "small" if len(members) >= MANY else "large"
        sections.append(
            Section(
                id_,
                {f"n-{visible(node['name'])}": _square(node) for node in members},
                attributes={
                    "class": f"grid {size}",
                    "role": "group",
                    "tabindex": "0",
                    "aria-label": f"{len(members):,} nodes, {visible(name)}: arrow keys go through them",
                    "aria-describedby": "tell",
                    "data-title": visible(name),
                },
            )
        )
    return sections


@lru_cache(maxsize=512)
def class_name(gres: str, partitions: tuple[str, ...]) -> str:
    """Return a class's name, `gpu:h100:8, partition batch`: nodes of one class can replace each other."""
    plain = re.sub(r"\([^)]*\)", "", gres)
    where = f"partition{'s' if len(partitions) > 1 else ''} {', '.join(partitions)}" if partitions else ""
    return ", ".join(filter(None, (plain, where))) or "no partition"


@lru_cache(maxsize=50_000)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts n2 before n10."""
    parts = re.split(r"(\d+)", name)
    return tuple((1, int(part[:18]), part) if part.isdecimal() else (0, 0, part) for part in parts)


def _square(node: Row) -> Element:
    """Return the square of a node; its text is made of the state, unless there is more to say."""
    state = shown_state(node)
    story = node.get("reason") or node.get("word") or ""
    if repair := node.get("repair"):
        story = f"under repair, {repair.get('doing', '')}; {story}".rstrip("; ")
    elif not story and state == FOREIGN:
        story = node.get("state", "")
    return _made(node["name"], state, node.get("job") or "", story, node.get("strikes") or 0)


@lru_cache(maxsize=50_000)
def _made(name: str, state: str, job: str, story: str, strikes: int) -> Element:
    """Return the same object for the same node: making ten thousand new ones takes longer than comparing."""
    return element(
        "i",
        id=f"n-{name}",
        class_=state,
        data_job=job or None,
        data_story=story or None,
        data_strikes=strikes or None,
    )
