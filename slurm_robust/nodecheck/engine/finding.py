"""What a check came to, and what that makes of the node."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_robust.text import shortened

SENTENCE_MAX_CHARS = 200


class Status(str, enum.Enum):
    """What one check says."""

    PASS = "pass"  # noqa: S105 (a status, no secret)
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    UNKNOWN = "unknown"


class Fitness(str, enum.Enum):
    """What all checks together say of the node."""

    FIT = "fit"
    UNFIT = "unfit"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """One check's answer.

    Attributes:
        status: Only `fail` makes a node unfit. `skip`: nothing to look at here. `unknown`: could not look.
        reason: A stable code in snake_case, for tools and for statistics.
        sentence: The same for people, without the node's name; goes into drain reasons.
        remedy: What to do next; empty where nothing is to be done.
        evidence: What the answer rests on; plain JSON values.
    """

    status: Status
    reason: str
    sentence: str
    remedy: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """A finding with the name of its check and the wall time of its probe.

    Attributes:
        conditions: What must still hold for a cached verdict with this finding, see `fast_path.CONDITIONS`.
    """

    name: str
    finding: Finding
    duration_ms: float = 0.0
    conditions: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Report:
    """One look at one node."""

    node: str
    stage: str
    results: tuple[Result, ...]

    @property
    def verdict(self) -> Fitness:
        """Any `fail` makes it unfit; else any `unknown` makes it unknown, which is not unhealthy."""
        return fitness(result.finding.status for result in self.results)

    @property
    def sentence(self) -> str:
        """The verdict's reason in at most 200 characters: the failed checks, or those that could not tell."""
        wanted = {Fitness.UNFIT: Status.FAIL, Fitness.UNKNOWN: Status.UNKNOWN}.get(self.verdict)
        said = [r.finding.sentence for r in self.results if r.finding.status is wanted]
        # Where a driver does not answer, every check of it says the same.
        return shorten("; ".join(dict.fromkeys(said))) if said else "all checks passed"

    def to_json(self) -> dict[str, Any]:
        """The documented shape of `check --json`."""
        return {
            "node": self.node,
            "stage": self.stage,
            "verdict": self.verdict.value,
            "checks": [
                {
                    "name": result.name,
                    "status": result.finding.status.value,
                    "reason": result.finding.reason,
                    "sentence": result.finding.sentence,
                    "remedy": result.finding.remedy,
                    "evidence": dict(result.finding.evidence),
                    "duration_ms": round(result.duration_ms, 1),
                }
                for result in self.results
            ],
        }


def fitness(statuses: Iterable[Status]) -> Fitness:
    """What these statuses make of a node."""
    seen = set(statuses)
    if Status.FAIL in seen:
        return Fitness.UNFIT
    return Fitness.UNKNOWN if Status.UNKNOWN in seen else Fitness.FIT


def shorten(text: str, limit: int = SENTENCE_MAX_CHARS) -> str:
    """Printable, one line, at most `limit` characters: fit for a drain reason."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return shortened(line, limit)
