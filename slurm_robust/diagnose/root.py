"""Finds the one of many errors from which the others follow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from slurm_robust.diagnose.findings import LogFinding, each_rule_once
from slurm_robust.diagnose.rulebook import shipped
from slurm_robust.diagnose.taxonomy import Blame, Category

UNKNOWN = "unknown"
_SAYS_LITTLE = ("summary", "runtime")
"""Categories whose consequences come after all others."""
_OF_DRIVER = ("gpu_driver", "gpu_lost", "gpu_ecc", "nvlink", "host_hardware")
_FINDS_NO_GPU = re.compile(
    r"No (?:CUDA|HIP) GPUs are available|no CUDA-capable device|CUDA is not available|(?:requires|needs) a GPU\b|"
    r"not compiled with CUDA|No supported gpu backend|invalid device ordinal|device_count\(\) is 0|"
    r"CUDA.*not (?:found|usable)|no GPUs? (?:was |were )?found|CUDA (?:is )?required|"
    r"\bcuda\.is_available\(\) (?:is|returned|==) False",
    re.IGNORECASE,
)
_ASSERTS_GPU = re.compile(r"^\s*assert\b[^,]*\bcuda\.(?:is_available|device_count)\(\)")
_NO_NETWORK, _NOT_STARTED = "nccl-network-missing", "ofi-not-started"
_WAITED = "comm_timeout"
_ENQUEUED = re.compile(r"last enqueued (?:NCCL )?work: (\d+)")
_WATCHED_RANK = re.compile(r"\b[Rr]ank (\d+)\]|\[rank(\d+)\]")
_GROUP = re.compile(r"\[PG (?:ID )?(\S+)")
_PORT = re.compile(r"port (?:error|down)|[Ll]ink down|Cable error")
_HOST = re.compile(r"^\s*(?:\d+: )?([\w.-]+):\d+:\d+ \[|\d\d:\d\d:\d\d ([\w.-]+) kernel: |^\s*([A-Za-z][\w.-]*\d): ")


@dataclass(frozen=True)
class Diagnosis:
    """A diagnosis: what broke.

    Attributes:
        root: The line that shows the failure; None if no line does.
        category: The category of the root.
        blame: Whose fault the failure is.
        followed: Errors that only followed from the root, each rule once, in order.
        also: Other errors that may be roots of their own.
        why: Which lines beside the root decide about it, as a sentence; empty if none do.
        earlier: The roots of attempts before the root's, the newest first.
    """

    root: LogFinding | None
    category: Category
    blame: Blame
    followed: tuple[LogFinding, ...] = ()
    also: tuple[LogFinding, ...] = ()
    why: str = ""
    earlier: tuple[LogFinding, ...] = ()


def diagnose(found: Sequence[LogFinding]) -> Diagnosis:
    """Find the root among the findings of a job, which are in order of time if it is known.

    Consequences only count if there is nothing else. Otherwise a machine's own complaint goes before a specific error,
    and a specific error before a general one. Of equal errors, the first counts.
    """
    if not found:
        unknown = shipped().categories[UNKNOWN]
        return Diagnosis(None, unknown, unknown.blame)
    root, why = _warned(_raised(min(found, key=_rank), found), found)
    for look in (_behind, _plugin):
        if not why:
            root, why = look(root, found)
    blame, shared = _of_several_nodes(root, found)
    why = why or shared or ("the log is cut: this traceback has no last line" if root.cut else "")
    rest = each_rule_once(finding for finding in found if finding is not root and finding.rule is not root.rule)
    followed = tuple(f for f in rest if not f.rule.weight or f.followed)
    also = tuple(f for f in rest if f not in followed and not f.mild)
    return Diagnosis(root, root.category, blame, followed, also, why)


def diagnose_attempts(found: Sequence[LogFinding]) -> Diagnosis:
    """Find the root in the last attempt that says more than a warning: an earlier one's error did not end the job."""
    told = [diagnose([one for one in found if one.attempt == n]) for n in sorted({one.attempt for one in found})]
    while len(told) > 1 and told[-1].root is not None and told[-1].root.mild:
        told.pop()
    last, *before = reversed(told or [diagnose(found)])
    return replace(last, earlier=tuple(one.root for one in before if one.root is not None))


def without_root(diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis without its root, which is only a warning that ended nothing."""
    unknown, root = shipped().categories[UNKNOWN], diagnosis.root
    also = (root, *diagnosis.also) if root is not None else diagnosis.also
    return replace(diagnosis, root=None, category=unknown, blame=unknown.blame, also=also, why="")


def _warned(root: LogFinding, found: Sequence[LogFinding]) -> tuple[LogFinding, str]:
    """Return, in place of an exception that finds no GPU, an earlier warning of the driver with the reason."""
    if _FINDS_NO_GPU.search(root.text) is None and _ASSERTS_GPU.search(root.code) is None:
        return root, ""
    told = [f for f in found if f.category.name in _OF_DRIVER and f.mild and f.number < root.number]
    if not told:
        return root, ""
    return min(told, key=lambda f: (-f.rule.weight, f.number)), "the exception after it only finds no GPU"


def _plugin(root: LogFinding, found: Sequence[LogFinding]) -> tuple[LogFinding, str]:
    """Return, in place of a network that NCCL does not find, its plugin's error, if the plugin could not start."""
    if root.rule.id != _NO_NETWORK:
        return root, ""
    told = next((one for one in found if one.rule.id == _NOT_STARTED), None)
    if told is None:
        return root, ""
    return told, "the plugin is there and could not start, therefore its network is not found"


def _behind(root: LogFinding, found: Sequence[LogFinding]) -> tuple[LogFinding, str]:
    """Return, of watchdogs that timed out, that of the rank with the fewest operations: others waited for it."""
    if root.category.name != _WAITED:
        return root, ""
    last: dict[str, dict[int, tuple[int, LogFinding]]] = {}
    for one in found:
        enqueued, rank = _ENQUEUED.search(one.text), _WATCHED_RANK.search(one.text)
        if enqueued is not None and rank is not None:
            group = _GROUP.search(one.text)
            number = next(int(n) for n in rank.groups() if n is not None)
            last.setdefault(group[1] if group is not None else "", {}).setdefault(number, (int(enqueued[1]), one))
    for ranks in last.values():
        fewest = min(count for count, _ in ranks.values())
        late = sorted(rank for rank, (count, _) in ranks.items() if count == fewest)
        if len(late) * 2 < len(ranks):
            most = max(count for count, _ in ranks.values())
            who = ", ".join(map(str, late[:8]))
            why = f"rank {who} has enqueued {fewest} operations of its group, others up to {most}: they waited for it"
            return ranks[late[0]][1], why
    return root, ""


def _of_several_nodes(root: LogFinding, found: Sequence[LogFinding]) -> tuple[Blame, str]:
    """Return the root's blame; ports that fail on several nodes at once have a cause that these nodes share."""
    if _PORT.search(root.text) is None or root.blame is not Blame.EITHER:
        return root.blame, ""
    told = (_HOST.search(f.text) for f in found if f.category is root.category and _PORT.search(f.text))
    hosts = sorted({next(host for host in match.groups() if host) for match in told if match is not None})
    if len(hosts) < 2:
        return root.blame, ""
    return Blame.SHARED, f"ports of {', '.join(hosts[:8])} report errors: these nodes share the cause"


def _raised(root: LogFinding, found: Sequence[LogFinding]) -> LogFinding:
    """Return an exception in place of a line about the program: scripts complain of much that ends nothing."""
    if root.in_traceback or root.blame is not Blame.PROGRAM or any(f.category is root.category for f in _raises(found)):
        return root
    return min((f for f in _raises(found) if f.rule.weight >= root.rule.weight), key=_rank, default=root)


def _raises(found: Sequence[LogFinding]) -> Iterator[LogFinding]:
    return (f for f in found if f.in_traceback and not f.followed and not f.mild)


def _rank(finding: LogFinding) -> tuple[float, int]:
    weight = float(finding.rule.weight)
    if finding.followed or finding.mild:
        weight = min(weight, 0.5) if weight else -1.0
    if finding.header:
        weight -= 0.1
    if not finding.rule.weight and finding.category.name in _SAYS_LITTLE:
        weight -= 0.5
    return -weight, finding.number
