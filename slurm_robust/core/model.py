"""Defines the six nouns as frozen values. Standard library only; of the package it imports only `mode`.

`Signal → Incident → Verdict → Plan → Action → Attempt`: data goes in this direction only. Every time is seconds since
the epoch (`…_at_s`) and every duration is seconds (`…_s`).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_robust.core.mode import Mode as Mode  # noqa: PLC0414 (users of the six nouns find it among them)

EXIT_REQUEUE_WANTED = 75
"""The exit code of `srobust run` if it wanted a requeue and nothing requeued the job (sysexits' EX_TEMPFAIL)."""
EXIT_STOPPED_FOR_GOOD = 93
"""`srobust run`: three attempts without a new step; requeueing again would loop."""
EXIT_USAGE = 64
"""`srobust run`: wrong arguments (sysexits' EX_USAGE)."""

BESIDE = "several sruns of the job run at once"
"""The reason for doing nothing in a job whose supervisors would take each other's nodes for spares."""
REASON_PREFIX = "srobust:"
"""The beginning of every drain reason that this package writes; any other reason was written by a person."""


def job_tag(job_id: int) -> str:
    """Return the end of a drain reason: the job (Slurm's raw id) that the node's prolog refused to start."""
    return f"[job {job_id}]"


@dataclass(frozen=True)
class JobRef:
    """Exactly one job: `12`, one task of an array `12_3`, or a het component `12+1`.

    Attributes:
        job_id: The raw id, unique for each array task (`SLURM_JOB_ID`).
        array_job_id: The array's own id, or None if the job is no array task.
        array_task_id: The task's index in the array, or None.
        het_offset: Offset in a het job, or None. Het jobs are only alerted on.
    """

    job_id: int
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_offset: int | None = None

    @property
    def address(self) -> str:
        """The name by which Slurm's commands find exactly this job.

        One task of an array carries the array's own id as its job id, so the bare id would mean all tasks.
        """
        if self.array_job_id is not None and self.array_task_id is not None:
            return f"{self.array_job_id}_{self.array_task_id}"
        return str(self.job_id)

    @classmethod
    def parse(cls, text: str, job_id: int | None = None) -> JobRef:
        """Read `12`, `12_3` or `12+1`; `job_id` gives an array task's raw id if it is known.

        Raises:
            ValueError: the text does not have one of these forms.
        """
        match = re.fullmatch(r"(\d{1,10})(?:_(\d{1,10})|\+(\d{1,4}))?", text)
        if match is None:
            raise ValueError(f"not a job id: {text!r} (expected 12, 12_3 or 12+1)")
        leader, task, offset = match.groups()
        if task is not None:
            return cls(job_id if job_id is not None else int(leader), int(leader), int(task))
        if offset is not None:
            return cls(job_id if job_id is not None else int(leader), het_offset=int(offset))
        return cls(int(leader))


@dataclass(frozen=True)
class Attempt:
    """One run of a job: job ids are reused and survive requeues, so more than the id is needed.

    Attributes:
        cluster: Slurm's name of the cluster.
        job: The job's address (`JobRef.address`).
        restart_count: How often Slurm had requeued the job before this run.
        start_at_s: When Slurm started this run, seconds since the epoch.
    """

    cluster: str
    job: str
    restart_count: int
    start_at_s: int

    @property
    def key(self) -> str:
        """The attempt as one word, fit for file names and database keys."""
        return f"{self.cluster}.{self.job}.r{self.restart_count}.{self.start_at_s}"


class SignalKind(str, enum.Enum):
    """The kind of observation that a signal reports."""

    SILENCE = "silence"
    RANK_EXITED = "rank_exited"
    AGENT_SILENT = "agent_silent"
    NODE_DOWN = "node_down"
    NODE_FAULT = "node_fault"
    OOM_KILL = "oom_kill"
    TEST_FAILED = "test_failed"
    BAD_LOSS = "bad_loss"
    SLOW = "slow"


@dataclass(frozen=True)
class Signal:
    """A fact observed once."""

    kind: SignalKind
    at_s: float
    source: str
    detail: str
    node: str = ""
    rank: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


TIME_KEYS = (
    "fault",
    "suspected",
    "captured",
    "localised",
    "decided",
    "stopped",
    "tests_started",
    "tests_done",
    "running",
    "imports_done",
    "process_groups_ready",
    "checkpoint_loaded",
    "first_new_step",
)


class Grade(str, enum.Enum):
    """The certainty of the evidence behind a verdict.

    `localize` gives the grade: `localize.grades.Ground` lists the reasons for each grade. `policy` alone turns a grade
    into a consequence: `policy.job.consequences` says what may be done, and when.
    """

    CERTAIN = "certain"
    STRONG = "strong"
    WEAK = "weak"
    NONE = "none"


class Conclusion(str, enum.Enum):
    """The result of localisation."""

    CULPRIT = "culprit"
    NONE = "none"
    USER_CODE = "user_code"
    UNDETERMINED = "undetermined"

    @classmethod
    def of(cls, text: str) -> Conclusion:
        """Return the conclusion of that name; undetermined if the text names no conclusion."""
        return next((known for known in cls if known.value == text), cls.UNDETERMINED)


@dataclass(frozen=True)
class Suspect:
    """A node (and ranks on it) held to be at fault, with how sure and why.

    Attributes:
        why: One short sentence: node, fault, evidence.
        detail: What else is known of it, in words.
        infrastructure: False if the rank is at fault but nothing says that its node is.
    """

    node: str
    ranks: tuple[int, ...]
    confidence: float
    why: str
    infrastructure: bool = True
    detail: str = ""


@dataclass(frozen=True)
class StackClass:
    """Ranks that stand at the same place.

    Attributes:
        ranks: Folded, `0-2,5`.
        stack: Frames, outermost first, `function (file:line)`.
    """

    ranks: str
    stack: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """The answer to who is at fault, and why, in words.

    Attributes:
        reason: One short sentence: node, fault, evidence.
        detail: What else is known of the fault, in words.
        corroborated: The evidence was seen often and long enough to be relied on, as far as its grade goes.
        missing: Evidence that was looked for and not found.
        grade: How sure the evidence is; something may be done about a verdict only once it is corroborated.
    """

    conclusion: Conclusion
    reason: str
    suspects: tuple[Suspect, ...] = ()
    classes: tuple[StackClass, ...] = ()
    missing: tuple[str, ...] = ()
    corroborated: bool = False
    detail: str = ""
    grade: Grade = Grade.NONE


class FailureCause(str, enum.Enum):
    """What can cause a failure that looks like this: only a node, or something else as well."""

    NODE = "node"
    """Only a node can cause it: the node fell silent, reported a fault or stopped a process."""
    EITHER = "either"
    """A crash by a signal, a hang: node or program."""
    WORDS = "words"
    """An error message that a node or a program may cause. It is specific, so it counts beyond a new step, too."""
    SHARED = "shared"
    """Storage, a name service, a network, a remote service: nothing that another node would not have met, too."""
    SLURM = "slurm"
    """Slurm could not start the step: nothing of the program has run, and no node is known to be at fault."""
    PROGRAM = "program"
    """An exit code, an exception, a memory limit: coming again on the same node says nothing about the node."""


@dataclass(frozen=True)
class Failure:
    """A failure in the form in which failures of a lineage are compared.

    Attributes:
        signature: The same text for the same failure: an error message without its numbers and paths, a signal, the
            place of a hang.
        nodes: Where the failure showed: the suspects' nodes, or the nodes of the ranks that died first.
        category: The category that the rules of `diagnose` give to the line that shows the failure; empty for none.
    """

    signature: str
    nodes: tuple[str, ...] = ()
    cause: FailureCause = FailureCause.EITHER
    category: str = ""

    @property
    def bare_exit(self) -> bool:
        """Whether an exit code is all that is known of it: no signal, and no words that explain it."""
        return self.signature.startswith("died: exit ")


class TestName(str, enum.Enum):
    """Tests of nodes that stand still, in the order in which they run."""

    __test__ = False  # for pytest, which takes it for a test

    IN_NODE = "in-node"
    PAIRS = "pairs"
    ALIGNMENT = "alignment"
    REPLAY = "replay"


class Road(str, enum.Enum):
    """Ways back to training, best first, the way to more evidence, and the two ways out."""

    RESTART_IN_PLACE = "restart_in_place"
    SPARE_IN_ALLOCATION = "spare_in_allocation"
    SEAT = "seat"
    OWNER_REQUEUE = "owner_requeue"
    PLAIN_REQUEUE = "plain_requeue"
    TEST = "test"
    """The supervisor ends the attempt, tests its nodes, and decides the incident again with the test results."""
    STOP = "stop"
    ALERT_ONLY = "alert_only"


def road_words(road: str) -> str:
    """Return a road in words: `requeue into a seat`, `alert only`; an unknown road by its name, with spaces for `_`."""
    return "requeue into a seat" if road == Road.SEAT.value else road.replace("_", " ")


@dataclass(frozen=True)
class Plan:
    """What to do, and why, in words.

    Attributes:
        evict: Nodes the next attempt must not use.
        exit_code: The exit code of the wrapper if the road is STOP.
        roll_back: The next attempt goes back to a checkpoint from before the loss went bad.
        pause_s: How long to wait before the next attempt.
        code: The version of the job's code that the next attempt runs; 0 for the one in force.
        tests: The tests to run if the road is TEST.
        test_nodes: The nodes to test if the road is TEST.
        rung: The rung of the ladder that this is (`policy.job.ladder.Rung`), empty if the plan is not a rung.
    """

    road: Road
    reason: str
    evict: tuple[str, ...] = ()
    exit_code: int | None = None
    roll_back: bool = False
    pause_s: float = 0.0
    code: int = 0
    tests: tuple[TestName, ...] = ()
    test_nodes: tuple[str, ...] = ()
    rung: str = ""


class ActionKind(str, enum.Enum):
    """The daemon's allow-list: it never does anything else to Slurm."""

    QUARANTINE = "quarantine"
    RELEASE_QUARANTINE = "release_quarantine"
    RECHECK = "recheck"
    DRAIN = "drain"
    SET_DOWN = "set_down"
    CREATE_SEAT = "create_seat"
    REQUEUE = "requeue"
    POINT_JOB_AT_SEAT = "point_job_at_seat"
    WAIT_RUNNING = "wait_running"
    LEAVE_SEAT = "leave_seat"
    DELETE_SEAT = "delete_seat"
    ANSWER = "answer"
    CANCEL = "cancel"
    LIFT_EXCLUDE = "lift_exclude"
    RESUME = "resume"
    KEEP_STANDBY = "keep_standby"
    STANDBY_CHECK = "standby_check"
    DRAIN_PERMIT = "drain_permit"
    RELEASE_JOB = "release_job"
    DELETE_ORPHAN = "delete_orphan"
    REBOOT = "reboot"
    REPAIR_COMMAND = "repair_command"
    CLEAR_FAULT = "clear_fault"
    HOLD_PAIR = "hold_pair"
    TEST_PAIR = "test_pair"
    RELEASE_PAIR = "release_pair"


@dataclass(frozen=True)
class Action:
    """One idempotent step that Slurm carries out; it is done only when Slurm, read again, shows its result."""

    kind: ActionKind
    target: str
    reason: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Incident:
    """One fault of one attempt: what was seen, who is at fault, what was decided, how it ended.

    Wrapper, journal, JSON and report share this value; `incident.json` has exactly these fields.

    Attributes:
        id: The incident's name, unique within its job.
        job: The job's address (`JobRef.address`).
        attempt: Name of the launch, or `Attempt.key` if this package did not launch the step.
        opened_at_s: When the fault was suspected, seconds since the epoch.
        signals: The observations, in order of time.
        times: The scoreboard: seconds since the epoch by the keys of `TIME_KEYS`.
        verdict: Who is at fault; None before the incident was judged.
        plan: What was decided; None before the decision.
        outcome: How the incident ended, as a sentence; empty while the incident is open.
        notes: Other sentences worth knowing.
        tree: The merged stacks of the last capture, as text.
        cause: What broke, in the job's own words, as `localize.failure.words_of` reads it: `category`, `blame`,
            `signature`, `line`, `place`, `rank`, `node`, `meaning`, `remedy`. Empty if no line names a cause.
    """

    id: str
    job: str
    attempt: str
    opened_at_s: float
    signals: tuple[Signal, ...] = ()
    times: Mapping[str, float] = field(default_factory=dict)
    verdict: Verdict | None = None
    plan: Plan | None = None
    outcome: str = ""
    notes: tuple[str, ...] = ()
    tree: str = ""
    cause: Mapping[str, str] = field(default_factory=dict)
