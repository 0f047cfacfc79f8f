"""Judges each node by the tests within the node. Pure.

A wrong number is the node's own fault, and so is a crash on one device while two others got a result. A copy is slow
below half of the median over all GPUs of the run (a link of a GPU that has lost lanes), or below the site's minimum. On
CPUs slowness does not count: a node's processors are busy with other work, too.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_robust.stoptime.alignment import CRASHES

SLOW_SHARE = 0.5
_LEAST_FOR_MEDIAN = 3
_LEAST_OTHERS = 2
_WRONG = {
    "products": "computes wrong products: {count} numbers or sums in {repeats} products",
    "all_to_all": "receives {count} wrong numbers from the other GPUs of its node",
    "memory": "{count} bytes are wrong after a copy in the host's memory",
    "h2d": "{count} bytes are wrong after a copy from the host",
    "d2h": "{count} bytes are wrong after a copy to the host",
    "d2d": "{count} bytes are wrong after a copy to the next GPU",
}
_WAYS = {"h2d": "from the host", "d2h": "to the host", "d2d": "to the next GPU"}


@dataclass(frozen=True)
class InNodeVerdict:
    """The verdict on the tests within the nodes.

    Attributes:
        broken: Nodes with a device that computes or copies wrongly or slowly → the reason.
        untested: Nodes whose ranks have no result → the reason.
    """

    broken: dict[str, str] = field(default_factory=dict)
    untested: dict[str, str] = field(default_factory=dict)


def judge(
    answers: Mapping[str, Sequence[Mapping[str, Any]]], repeats: int = 5, least: Mapping[str, float] | None = None
) -> InNodeVerdict:
    """Judge the answers of the ranks.

    Args:
        answers: Node → for each rank its `device`, and `wrong` with `gb_per_s`, or `error`, or `late`.
        repeats: How many products each device computed.
        least: The site's own minimum of each way, in GB/s; 0 for none.
    """
    good = sum("wrong" in rank for ranks in answers.values() for rank in ranks)
    usual = _medians(answers)
    broken: dict[str, list[str]] = defaultdict(list)
    untested: dict[str, str] = {}
    for node, ranks in answers.items():
        for rank in ranks:
            error = str(rank.get("error", ""))
            if "wrong" in rank:
                broken[node] += _wrong(rank, repeats) + _slow(rank, usual, least or {})
            elif _crashed(error) and good >= _LEAST_OTHERS:
                broken[node].append(f"{rank['device']}: {error}")
            else:
                why = error or rank.get("unjoined") or "no end of its test in time"
                untested[node] = f"{rank['device']}: {why}"
    named = {node: "; ".join(reasons) for node, reasons in broken.items() if reasons}
    return InNodeVerdict(named, {node: why for node, why in untested.items() if node not in named})


def _crashed(error: str) -> bool:
    small = error.lower()
    return any(words in small for words in CRASHES) and "out of memory" not in small


def _wrong(rank: Mapping[str, Any], repeats: int) -> list[str]:
    return [
        f"{rank['device']} {_WRONG[way].format(count=count, repeats=repeats)}"
        for way, count in rank["wrong"].items()
        if count
    ]


def _medians(answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """Return the usual rate of each way, if there are three devices to compare."""
    rates: dict[str, list[float]] = defaultdict(list)
    for ranks in answers.values():
        for rank in ranks:
            for way, rate in rank.get("gb_per_s", {}).items():
                if way in _WAYS:
                    rates[way].append(rate)
    return {way: statistics.median(found) for way, found in rates.items() if len(found) >= _LEAST_FOR_MEDIAN}


def _slow(rank: Mapping[str, Any], usual: Mapping[str, float], least: Mapping[str, float]) -> list[str]:
    found = []
    for way, rate in rank["gb_per_s"].items():
        copies = f"{rank['device']} copies {_WAYS.get(way, way)} at {rate:.3g} GB/s"
        if rate < SLOW_SHARE * usual.get(way, 0.0):
            found.append(f"{copies}, the median of all GPUs is {usual[way]:.3g} GB/s")
        elif rate < least.get(way, 0.0):
            found.append(f"{copies}, the site asks for {least[way]:g} GB/s")
    return found


def of_tools(answers: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the results of NVIDIA's tests: nodes that fail, with the tool's sentence, and what was not tested.

    Args:
        answers: Node → sentences: `failed`, `notes`, `missing`; empty if the node gave no answer in time.
    """
    failed = {node: str(answer["failed"]) for node, answer in answers.items() if answer.get("failed")}
    together: dict[str, list[str]] = defaultdict(list)
    for node, answer in answers.items():
        if "missing" not in answer:
            together[str(answer.get("error") or "dcgmi diag and nvbandwidth did not end in time")].append(node)
            continue
        if answer["missing"]:
            together[f"not installed: {answer['missing']}"].append(node)
        if answer.get("notes"):
            together[str(answer["notes"])].append(node)
    return failed, tuple(f"{note} ({', '.join(nodes)})" for note, nodes in together.items())
