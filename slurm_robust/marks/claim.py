"""Reads and writes the claim: what a job tells the daemon, in the job's own Slurm record.

A job's `Comment` can be written by its owner only, survives a requeue, and is read for all jobs in one call.
The claim stands behind the user's own text as `[[srobust:1 {…}]]`; the daemon answers in the same way in
`AdminComment`, which only operators can write. A claim is untrusted text: `parse` accepts
known keys of the right type and size and nothing else. Standard library, `model` and `text` only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from slurm_robust.core.model import Conclusion, Grade, Plan, Road, Suspect, Verdict
from slurm_robust.core.text import NODE_NAME, printable, shortened

PROTOCOL_VERSION = 1
COMMENT_MAX_BYTES = 1024
_WORD = re.compile(r"[A-Za-z0-9._-]{0,64}\Z")
_BLOCK = re.compile(r"\s*\[\[srobust:(\d{1,4}) (\{.*\})\]\]\s*\Z", re.DOTALL)
MAX_NODES = 32
"""Names in one field; more refuse the whole claim."""
_MAX_WHY_CHARS = 240

STATE_WATCHING = "watching"
STATE_WANTS_REQUEUE = "wants"
STATE_DONE = "done"
STATES = (STATE_WATCHING, STATE_WANTS_REQUEUE, STATE_DONE)


class ClaimError(ValueError):
    """A claim that cannot be accepted; the message says which field and why."""


@dataclass(frozen=True)
class Claim:
    """The report of a supervised job about itself.

    Attributes:
        state: `watching` (supervised, nothing wanted), `wants` (a requeue, without `evict`), `done`.
        lineage: The name of the training across requeues: equal in every attempt.
        restart: SLURM_RESTART_COUNT of the attempt that wrote it; a claim of another attempt is stale.
        incident: Name of the open incident, or of the last one.
        fruitless: Attempts in a row, this lineage, that died before a new step.
        evict: Nodes that the next attempt must not use; only the job's own nodes are accepted.
        conclusion: The verdict's conclusion (`culprit`, `undetermined`, …).
        confidence: The confidence of the verdict, 0–1.
        why: The plan's reason.
        step: Highest step reached, -1 if unknown.
        resume_step: Step of the checkpoint that the attempt started from, -1 for none.
        at_s: When this was written, seconds since the epoch.
        suspected_at_s: The job suspects a fault since then, and may ask soon; 0 as soon as training progresses.
        times: Stamps of the incident, keys of `model.TIME_KEYS`.
        road: The plan for this incident (`model.Road` value), if the job asks for nothing because it acts by itself or
            only observes. Empty if there is no such plan. Daemons that do not know the key ignore it.
        mode: Whether that plan is carried out: `act` or `observe` (`model.Mode` value).
        suspects: Nodes that the verdict names, if the plan evicts other nodes or no node.
        failed: Launches of the job that ended badly without a new step, in the hour that began at `failed_since_s`.
        failed_since_s: The beginning of the hour of `failed`, seconds since the epoch.
        progress: How the training gets on in this attempt, if that is known: seconds since the epoch of its first step
            (`first`), of its first step that had not been made before (`new`) and of its last one (`last`), the number
            of its last step (`step`), seconds that its steps stood still for checkpoints (`ckpt`) and took beyond their
            usual pace (`slow`), seconds of a usual step (`pace`), GPUs of the job (`gpus`), seconds between two reports
            (`every`). This field is left out first if the Comment is too short.
        grade: How sure the evidence against `evict` is (`certain`, `strong`, `weak`, `none`). Empty if it is not known;
            claims of older versions have none, and daemons of older versions ignore it.
        asked: The attempt that asked for a requeue and got no answer; -1 for none. Its incident, `evict`, `grade` and
            `why` are repeated, for a daemon that was away. Daemons that do not know the key ignore it.
        own_mode: The mode in which the job's supervisor began, and which it keeps: `act` or `observe`. Empty in claims
            of older versions; daemons of older versions ignore it.
        still_since_s: Since when the stacks of a job that reports no progress stand still; 0 if they move.
        still: The place in the code where the ranks stand.
        acts_at_s: When a job in mode `act` does something about what it suspects, if nothing changes; 0 if that is not
            known. Daemons of older versions ignore it.
    """

    state: str
    lineage: str
    restart: int = 0
    incident: str = ""
    fruitless: int = 0
    evict: tuple[str, ...] = ()
    conclusion: str = ""
    confidence: float = 0.0
    why: str = ""
    step: int = -1
    resume_step: int = -1
    at_s: float = 0.0
    suspected_at_s: float = 0.0
    times: Mapping[str, float] = field(default_factory=dict)
    road: str = ""
    mode: str = ""
    suspects: tuple[str, ...] = ()
    failed: int = 0
    failed_since_s: float = 0.0
    progress: Mapping[str, float] = field(default_factory=dict)
    grade: str = ""
    asked: int = -1
    own_mode: str = ""
    still_since_s: float = 0.0
    still: str = ""
    acts_at_s: float = 0.0

    def verdict(self, suspects: Sequence[str]) -> Verdict:
        """Return the verdict that the claim reports, about these of its nodes."""
        named = tuple(Suspect(node, (), self.confidence, self.why) for node in suspects)
        grade = next((known for known in Grade if known.value == self.grade), Grade.NONE)
        return Verdict(Conclusion.of(self.conclusion), self.why, named, grade=grade)

    def step_now(self, restart: int) -> int:
        """Return the highest step reached, by the progress of this run of the job, too; -1 if unknown."""
        own = self.progress.get("step", -1.0) if self.restart == restart else -1.0
        return max(self.step, int(own) if abs(own) < 2**53 else -1)

    def plan(self, evict: tuple[str, ...]) -> Plan | None:
        """Return the plan that the job carries out by itself, with these nodes of it evicted; None without one."""
        road = next((known for known in Road if known.value == self.road), None)
        return Plan(road, self.why, evict) if road is not None else None


@dataclass(frozen=True)
class ClaimAnswer:
    """The daemon's answer, in `AdminComment`.

    Attributes:
        state: `accepted` (a seat is being made), `refused`, `observing` (would have acted), `done`.
        incident: The claim's incident.
        why: The reason.
        road: The road taken (`model.Road` value), empty if refused.
        standby: Standby nodes that replace the evicted.
    """

    state: str
    incident: str
    why: str = ""
    road: str = ""
    standby: tuple[str, ...] = ()
    at_s: float = 0.0


def _checked(kind: type[Any], raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ClaimError("not a JSON object")
    # Unknown keys are ignored: a newer version may write more.
    checks = {f.name: _sentence if f.name in ("why", "still") else _CHECKS[str(f.type)] for f in fields(kind)}
    return {key: checks[key](key, value) for key, value in raw.items() if key in checks}


def _nodes(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_NODES:
        raise ClaimError(f"{key}: not a list of at most {MAX_NODES} node names")
    for name in value:
        if not isinstance(name, str) or not NODE_NAME.match(name):
            # A value that is no text is not shown: deeply nested lists cannot be.
            shown = name[:40] if isinstance(name, str) else type(name).__name__
            raise ClaimError(f"{key}: not a node name: {shown!r}")
    return tuple(value)


def _sentence(key: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_WHY_CHARS:
        raise ClaimError(f"{key}: not a text of at most {_MAX_WHY_CHARS} characters")
    return printable(value)


def _whole(key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value < 2**62:
        raise ClaimError(f"{key}: not a whole number")
    return value


def _word(key: str, value: Any) -> str:
    if not isinstance(value, str) or not _WORD.match(value):
        raise ClaimError(f"{key}: not a plain word of at most 64 characters")
    return value


def _finite(key: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
    except OverflowError:  # a whole number of 400 digits
        number = math.inf
    if not math.isfinite(number):
        raise ClaimError(f"{key}: not a finite number")
    return number


def _times(key: str, value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or len(value) > 16:
        raise ClaimError(f"{key}: not a table of at most 16 stamps")
    return {_word(f"{key} (a key)", k): _finite(f"{key}.{k}", v) for k, v in value.items()}


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "tuple[str, ...]": _nodes,
    "Mapping[str, float]": _times,
    "float": _finite,
    "int": _whole,
    "str": _word,
}
"""Validators by the type of a field; only `why` and `still` are sentences, every other text is a plain word."""


def split(comment: str) -> tuple[str, str | None]:
    """Split a comment into the user's own text and our block (None if there is none)."""
    start = comment.rfind("[[srobust:")
    if start < 0 or not _BLOCK.match(comment[start:]):
        return comment, None
    return comment[:start].rstrip(), comment[start:]


def _parse(kind: type[Any], comment: str) -> Any:
    block = split(comment[: 4 * COMMENT_MAX_BYTES])[1]
    if block is None:
        return None
    match = _BLOCK.match(block)
    assert match is not None
    version = int(match[1])
    if version not in (PROTOCOL_VERSION, PROTOCOL_VERSION - 1):
        raise ClaimError(
            f"protocol version {version} is not supported here (this side supports {PROTOCOL_VERSION}); "
            "update the older slurm_robust"
        )
    try:
        raw = json.loads(match[2])
    except (ValueError, RecursionError) as error:
        raise ClaimError(f"not JSON: {str(error)[:80]}") from None
    values = _checked(kind, raw)
    try:
        return kind(**values)
    except TypeError:
        raise ClaimError("a field is missing") from None


def parse(comment: str) -> Claim | None:
    """Read the claim out of a job's comment; None if the comment has no claim.

    Raises:
        ClaimError: the claim is malformed, oversized or of a protocol version not supported here.
    """
    claim: Claim | None = _parse(Claim, comment)
    if claim is None:
        return None
    if claim.state not in STATES:
        raise ClaimError(f"state: {claim.state!r} is not one of {', '.join(STATES)}")
    if not claim.lineage:
        raise ClaimError("lineage: empty")
    return claim


def parse_answer(admin_comment: str) -> ClaimAnswer | None:
    """Read the daemon's answer; None if there is none.

    Raises:
        ClaimError: the answer is malformed, oversized or of a protocol version not supported here.
    """
    answer: ClaimAnswer | None = _parse(ClaimAnswer, admin_comment)
    return answer


def answer_to(admin_comment: str, incident: str) -> ClaimAnswer | None:
    """Return the daemon's answer to this incident; None if there is no answer yet, or if the text cannot be read."""
    try:
        answer = parse_answer(admin_comment)
    except ClaimError:
        return None
    return answer if answer is not None and answer.incident == incident else None


def _render(value: Claim | ClaimAnswer) -> str:
    defaults = {f.name: f.default for f in fields(value)}
    values = {
        k: (list(v) if isinstance(v, tuple) else v)
        for k, v in asdict(value).items()
        if v != defaults[k] and v not in ((), {})
    }
    body = json.dumps(values, separators=(",", ":"), ensure_ascii=True)
    return f"[[srobust:{PROTOCOL_VERSION} {body}]]"


def render(value: Claim | ClaimAnswer, own_text: str = "") -> str:
    """Write the claim (or answer) behind the user's own text, in at most 1,024 bytes.

    If the text is too long, `progress` is left out, then `still`, then `why` is shortened, then `times` and `suspects`
    are left out; the user's text is never cut.

    Raises:
        ClaimError: the user's own text leaves too little space.
    """
    own_text = own_text.rstrip()
    value = replace(value, why=shortened(value.why, _MAX_WHY_CHARS))
    if isinstance(value, Claim):
        value = replace(value, still=shortened(value.still, _MAX_WHY_CHARS))
    while True:
        text = f"{own_text} {_render(value)}" if own_text else _render(value)
        excess = len(text.encode()) - COMMENT_MAX_BYTES
        if excess <= 0:
            return text
        if isinstance(value, Claim) and value.progress:
            value = replace(value, progress={})
        elif isinstance(value, Claim) and value.still:
            value = replace(value, still="")
        elif value.why:
            value = replace(value, why=shortened(value.why, max(0, len(value.why) - max(excess, 8))))
        elif isinstance(value, Claim) and value.times:
            value = replace(value, times={})
        elif isinstance(value, Claim) and value.suspects:
            value = replace(value, suspects=())
        elif isinstance(value, Claim) and value.evict and value.state != STATE_WANTS_REQUEUE:
            value = replace(value, evict=value.evict[: len(value.evict) // 2])
        else:
            raise ClaimError(f"the job's own comment leaves no room ({len(own_text.encode())} bytes of 1024)")
