"""Reads and writes the evidence of a saved incident beside its stacks: missing or ended ranks, reports of nodes.

The supervisor writes it as `circumstances.json` into the incident's folder, so that judging the folder gives the same
verdict as the live evidence. The file is read as untrusted: sizes are capped and types checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec

from slurm_robust.core.model import Signal, SignalKind
from slurm_robust.localize.dead_mounts import DeadMount
from slurm_robust.localize.evidence import Capture, CapturedProcess, Evidence, RaisedException, RankCapture, RankExit
from slurm_robust.localize.ranks import fold, unfold

CIRCUMSTANCES_FILE = "circumstances.json"
VERSION = 1
TOO_SLOW = "its node was too slow to send its stack"
MAX_WITH_LINES = 4096
"""How many ends keep their last lines: the earliest ones, since a rank that ended later followed an earlier one."""

_MAX_LINES = 4096
_MAX_ANSWERS = 64
_Word = Annotated[str, msgspec.Meta(max_length=512)]
_Lines = Annotated[list[Annotated[str, msgspec.Meta(max_length=65536)]], msgspec.Meta(max_length=_MAX_LINES)]
_Rank = Annotated[int, msgspec.Meta(ge=-1, lt=10_000_000)]
_Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class CircumstancesError(ValueError):
    """A file that cannot be used; the message says why."""


@dataclass(frozen=True)
class SavedRound:
    """A capture, as it was judged.

    Attributes:
        number: Number of the round, which the archives carry.
        missing: Nodes whose agent did not answer.
        unseen: Ranks, with their process ids, whose node answered without sending stacks in time.
    """

    number: int
    at_s: float
    missing: tuple[str, ...] = ()
    unseen: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True)
class Circumstances:
    """The evidence of an incident that its archives do not hold.

    Attributes:
        rounds: The captures that were judged, oldest first.
        ras_at_s: When each kept answer of NCCL's service was received, by its file's name.
    """

    world_size: int
    rank_nodes: Mapping[int, str]
    rounds: tuple[SavedRound, ...] = ()
    exits: tuple[RankExit, ...] = ()
    signals: tuple[Signal, ...] = ()
    ras_at_s: Mapping[str, float] = field(default_factory=dict)
    raised: Mapping[int, RaisedException] = field(default_factory=dict)
    dead_mounts: tuple[DeadMount, ...] = ()
    last_sign_s: float = 0.0


def saved_round(number: int, capture: Capture, slow_nodes: Iterable[str]) -> SavedRound:
    """Return what is saved of a capture beside its archives."""
    slow = set(slow_nodes)
    ranks = [r for r in capture.ranks if r.node in slow]
    unseen = tuple((r.rank, r.node, r.processes[0].pid if r.processes else 0) for r in ranks)
    return SavedRound(number, capture.at_s, capture.missing_nodes, unseen)


def unseen_rank(rank: int, node: str, pid: int) -> RankCapture:
    """Return a rank of which only the process is known."""
    return RankCapture(rank, node, (CapturedProcess(pid, 0, error=TOO_SLOW),), None)


def encode(evidence: Evidence, rounds: Sequence[SavedRound], ras_at_s: Mapping[str, float]) -> bytes:
    """Return the content of the file that keeps the circumstances of this evidence."""
    nodes: dict[str, list[int]] = {}
    for rank, node in evidence.rank_nodes.items():
        nodes.setdefault(node, []).append(rank)
    shared: dict[tuple[str, ...], int] = {}
    exits = []
    for count, end in enumerate(sorted(evidence.exits, key=lambda e: e.at_s)):
        at = shared.setdefault(end.shared_lines, len(shared))
        told = {"rank": end.rank, "node": end.node, "at_s": end.at_s, "exit_code": end.exit_code}
        lines = list(end.last_lines[-_MAX_LINES:]) if count < MAX_WITH_LINES else []
        exits.append({**told, "signal": end.signal, "oom": end.oom_killed, "lines": lines, "shared": at})
    signals = [
        {
            "kind": s.kind.value,
            "at_s": s.at_s,
            "source": s.source,
            "detail": s.detail,
            "node": s.node,
            "rank": s.rank,
            "evidence": dict(s.evidence),
        }
        for s in evidence.node_signals
    ]
    body: dict[str, Any] = {
        "v": VERSION,
        "world_size": evidence.world_size,
        "nodes": {node: fold(ranks) for node, ranks in nodes.items()},
        "rounds": [{"number": r.number, "at_s": r.at_s, "missing": r.missing, "unseen": r.unseen} for r in rounds],
        "exits": exits,
        "shared_lines": [list(lines) for lines in shared],
        "signals": signals,
        "ras_at_s": dict(ras_at_s),
        "raised": [
            {"rank": rank, "at_s": raised.at_s, "lines": raised.lines[-_MAX_LINES:]}
            for rank, raised in sorted(evidence.raised.items())[:MAX_WITH_LINES]
        ],
        "dead_mounts": [
            {"mount": d.mount, "node": d.node, "answers_on": list(d.answers_on[:_MAX_ANSWERS])}
            for d in evidence.dead_mounts[:_MAX_ANSWERS]
        ],
        "last_sign_s": evidence.last_sign_s,
    }
    return json.dumps(body).encode()


class _SavedRound(msgspec.Struct, frozen=True):
    number: Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)]
    at_s: float
    missing: list[_Word] = []
    unseen: list[tuple[_Rank, _Word, _Whole]] = []


class _Exit(msgspec.Struct, frozen=True):
    rank: _Rank
    node: _Word
    at_s: float
    exit_code: _Whole | None = None
    signal: _Whole = 0
    oom: bool = False
    lines: _Lines = []
    shared: Annotated[int, msgspec.Meta(ge=0)] = 0


class _Signal(msgspec.Struct, frozen=True):
    kind: SignalKind
    at_s: float
    source: _Word = ""
    detail: Annotated[str, msgspec.Meta(max_length=65536)] = ""
    node: _Word = ""
    rank: _Rank | None = None
    evidence: Annotated[dict[_Word, Any], msgspec.Meta(max_length=16)] = {}


class _Raised(msgspec.Struct, frozen=True):
    rank: _Rank
    at_s: float
    lines: _Lines = []


class _DeadMount(msgspec.Struct, frozen=True):
    mount: Annotated[str, msgspec.Meta(max_length=4096)]
    node: _Word
    answers_on: Annotated[list[_Word], msgspec.Meta(max_length=_MAX_ANSWERS)]


class _File(msgspec.Struct, frozen=True):
    v: int
    world_size: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
    nodes: dict[_Word, str] = {}
    rounds: Annotated[list[_SavedRound], msgspec.Meta(max_length=1024)] = []
    exits: list[_Exit] = []
    shared_lines: list[_Lines] = []
    signals: list[_Signal] = []
    ras_at_s: dict[_Word, float] = {}
    raised: Annotated[list[_Raised], msgspec.Meta(max_length=MAX_WITH_LINES)] = []
    dead_mounts: Annotated[list[_DeadMount], msgspec.Meta(max_length=_MAX_ANSWERS)] = []
    last_sign_s: float = 0.0


def decode(data: bytes) -> Circumstances:
    """Read a file of `encode`.

    Raises:
        CircumstancesError: of another version, or not of this shape.
    """
    try:
        raw = msgspec.json.decode(data, type=_File)
        rank_nodes = {rank: node for node, ranks in raw.nodes.items() for rank in unfold(ranks)}
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise CircumstancesError(f"not the circumstances of an incident: {str(error)[:160]}") from None
    if raw.v != VERSION:
        raise CircumstancesError(f"version {raw.v} is not read here (this side reads {VERSION}); update the older one")
    if any(rank >= raw.world_size for rank in rank_nodes):
        raise CircumstancesError(f"a rank beyond its {raw.world_size} ranks")
    lines = [tuple(told) for told in raw.shared_lines]
    exits = tuple(
        RankExit(e.rank, e.node, e.at_s, e.exit_code, e.signal, tuple(e.lines), e.oom,
                 lines[e.shared] if e.shared < len(lines) else ())
        for e in raw.exits
    )  # fmt: skip
    signals = tuple(Signal(s.kind, s.at_s, s.source, s.detail, s.node, s.rank, s.evidence) for s in raw.signals)
    rounds = tuple(SavedRound(r.number, r.at_s, tuple(r.missing), tuple(r.unseen)) for r in raw.rounds)
    raised = {told.rank: RaisedException(told.at_s, tuple(told.lines)) for told in raw.raised}
    dead = tuple(DeadMount(d.mount, d.node, tuple(d.answers_on)) for d in raw.dead_mounts)
    return Circumstances(
        raw.world_size, rank_nodes, rounds, exits, signals, raw.ras_at_s, raised, dead, raw.last_sign_s
    )


def completed(rounds: Mapping[int, Capture], known: Circumstances) -> tuple[Capture, ...]:
    """Return the captures as they were judged, with their times, the missing nodes, and the ranks that were unseen."""
    found = []
    for told in known.rounds:
        seen = {r.rank: r for r in rounds[told.number].ranks} if told.number in rounds else {}
        for rank, node, pid in told.unseen:
            seen.setdefault(rank, unseen_rank(rank, node, pid))
        found.append(Capture(told.at_s, tuple(seen[rank] for rank in sorted(seen)), told.missing))
    return tuple(found)


def with_circumstances(evidence: Evidence, rounds: Mapping[int, Capture], known: Circumstances) -> Evidence:
    """Return the evidence of an incident's archives with what was saved beside them."""
    return replace(
        evidence,
        world_size=max(evidence.world_size, known.world_size),
        rank_nodes={**evidence.rank_nodes, **known.rank_nodes},
        captures=completed(rounds, known),
        exits=known.exits,
        node_signals=known.signals,
        raised=known.raised,
        dead_mounts=known.dead_mounts,
        last_sign_s=known.last_sign_s,
    )
