"""Defines the result of a check, and what all results together say about the node."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_robust.core.text import printable, shortened

SENTENCE_MAX_CHARS = 200


class Status(str, enum.Enum):
    """The result of one check."""

    PASS = "pass"  # noqa: S105 (a status, no secret)
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    UNKNOWN = "unknown"


class Fitness(str, enum.Enum):
    """The result of all checks together."""

    FIT = "fit"
    UNFIT = "unfit"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """The answer of one check.

    Attributes:
        status: Only `fail` makes a node unfit. `skip`: nothing to check here. `unknown`: the check could not be made.
        reason: A stable code in snake_case, for tools and statistics.
        sentence: The reason for people, without the node's name; becomes part of drain reasons.
        remedy: The next action; empty if nothing needs to be done.
        evidence: The facts that the finding is based on; plain JSON values.
    """

    status: Status
    reason: str
    sentence: str
    remedy: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def passed(cls, reason: str, sentence: str, evidence: Mapping[str, Any] | None = None) -> Finding:
        """Return the finding that all is well."""
        return cls(Status.PASS, reason, sentence, "", evidence or {})

    @classmethod
    def skip(cls, reason: str, sentence: str, evidence: Mapping[str, Any] | None = None) -> Finding:
        """Return the finding that there is nothing to check on this node."""
        return cls(Status.SKIP, reason, sentence, "", evidence or {})

    @classmethod
    def warn(cls, reason: str, sentence: str, remedy: str, evidence: Mapping[str, Any] | None = None) -> Finding:
        """Something is wrong, and jobs may run all the same."""
        return cls(Status.WARN, reason, sentence, remedy, evidence or {})

    @classmethod
    def fail(cls, reason: str, sentence: str, remedy: str, evidence: Mapping[str, Any] | None = None) -> Finding:
        """Return the finding that the node is unfit."""
        return cls(Status.FAIL, reason, sentence, remedy, evidence or {})

    @classmethod
    def unknown(cls, reason: str, sentence: str, remedy: str, evidence: Mapping[str, Any] | None = None) -> Finding:
        """Return the finding that the check could not be made; the node then counts as neither fit nor unfit."""
        return cls(Status.UNKNOWN, reason, sentence, remedy, evidence or {})


@dataclass(frozen=True)
class Result:
    """A finding with the name of its check and the wall time of its probe.

    Attributes:
        conditions: The conditions of a cached verdict with this finding, see `fast_path.CONDITIONS`.
    """

    name: str
    finding: Finding
    duration_ms: float = 0.0
    conditions: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class NodeReport:
    """One run of checks on one node."""

    node: str
    stage: str
    results: tuple[Result, ...]

    @property
    def verdict(self) -> Fitness:
        """Unfit after any `fail`; else unknown after any `unknown`, which is not unhealthy."""
        return fitness(result.finding.status for result in self.results)

    @property
    def sentence(self) -> str:
        """The verdict's reason in at most 200 characters: the failed checks, or the checks that could not be made."""
        wanted = {Fitness.UNFIT: Status.FAIL, Fitness.UNKNOWN: Status.UNKNOWN}.get(self.verdict)
        sentences = [r.finding.sentence for r in self.results if r.finding.status is wanted]
        # Where a driver does not answer, all of its checks have the same sentence.
        return shorten("; ".join(dict.fromkeys(sentences))) if sentences else "all checks passed"

    def to_json(self) -> dict[str, Any]:
        """Return the documented shape of `check --json`."""
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
    """Return the verdict of these statuses."""
    seen = set(statuses)
    if Status.FAIL in seen:
        return Fitness.UNFIT
    return Fitness.UNKNOWN if Status.UNKNOWN in seen else Fitness.FIT


def shorten(text: str, limit: int = SENTENCE_MAX_CHARS) -> str:
    """Printable, one line, at most `limit` characters: fit for a drain reason."""
    line = " ".join(printable(text, " ").split())
    return shortened(line, limit)
