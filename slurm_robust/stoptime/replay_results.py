"""Reads from srun's output how the step of one group ended. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_robust.stoptime.replay_groups import ReplayGroup, ReplayOutcome, ReplayResult

MARK = "@srobust-replay "
"""Begins our own lines: `began NODE STEP` from each task. From the reference model `joining` and `joined` of each task,
and `digest DIGEST HARDWARE`."""
_TASKS_ENDED = re.compile(r"srun: error: \S+: tasks? [\d,\[\]-]+: ")
"""Matches `srun: error: n2: tasks 2-3: Exited with exit code 3`; only the first such line counts."""
_FIRST_TASK = re.compile(r": tasks? \[?(\d+)")
_LABEL = re.compile(r"\s*(\d+): ")
_SLURM_LINE = re.compile(r"(?:srun|slurmstepd[\w.-]*|slurmd): ")
_CANCELLED = re.compile(r"(?:STEP|JOB) [\d._+]+ ON \S+ CANCELLED|Job has been cancelled|Force Terminated job")
_NODE_LOST = re.compile(r"node fail|node_fail|due to node|lost connection|not responding", re.IGNORECASE)
_NOT_STARTED = re.compile(r"launch failed|Unable to create step|launch for .* failed", re.IGNORECASE)
_TAKEN = ("address already in use", "eaddrinuse")
_NO_MEMORY = ("out of memory", "cannot allocate memory", "oom_kill", "oom-kill")
_LINE_CHARS = 240


@dataclass
class StepOutput:
    """The facts from the output of a group's step so far.

    Attributes:
        began: Nodes on which a task began.
        tasks: The tasks that began, by their numbers.
        joining, joined: Tasks of the reference model that tried to meet the others, and tasks that met them.
        step: The step, such as `12.3`, once a task began.
        error: srun's first line about tasks that failed by themselves.
        words: The last line of each task, by its number.
        latest: The task whose line came last.
        complaint: srun's last error line that is not about a task.
        cancelled: Slurm ended the step before any task failed.
        node_lost: Slurm says that a node failed.
        taken: A port was in use.
        no_memory: A task ran out of memory; a smaller world needs more memory on each rank.
        not_started: Slurm could not start a task, before any task failed by itself.
        digest: The digest that the reference model computed; empty for a program of the user.
        hardware: The class of devices that computed the digest.
    """

    began: set[str] = field(default_factory=set)
    tasks: set[str] = field(default_factory=set)
    joining: set[str] = field(default_factory=set)
    joined: set[str] = field(default_factory=set)
    step: str = ""
    error: str = ""
    words: dict[str, str] = field(default_factory=dict)
    latest: str = ""
    complaint: str = ""
    cancelled: bool = False
    node_lost: bool = False
    taken: bool = False
    no_memory: bool = False
    not_started: str = ""
    digest: str = ""
    hardware: str = ""

    def take(self, line: str) -> None:
        """Read one line of the step's stdout or stderr, as `srun --label` prints it."""
        label = _LABEL.match(line)
        text = line[label.end() if label else 0 :].strip()[:_LINE_CHARS]
        self.no_memory = self.no_memory or any(part in text.lower() for part in _NO_MEMORY)
        if text.startswith(MARK):
            self._take_own(text[len(MARK) :].split(maxsplit=2), label[1] if label else "")
        elif _SLURM_LINE.match(text):
            self._take_slurms(text)
        elif text and label:
            self.latest = label[1]
            self.words[self.latest] = text
            self.taken = self.taken or any(part in text.lower() for part in _TAKEN)

    def last_words(self) -> str:
        """Return the last line of the task that failed first, or else of any task; empty if no task wrote a line."""
        failed = _FIRST_TASK.search(self.error)
        return self.words.get(failed[1] if failed else self.latest, "")

    @property
    def not_met(self) -> bool:
        """Whether all tasks tried to meet, and some did not: then a stranger, and no node, may be the reason."""
        return bool(self.joining - self.joined) and self.tasks <= self.joining

    def _take_own(self, words: Sequence[str], task: str) -> None:
        if words in (["joining"], ["joined"]):
            (self.joining if words == ["joining"] else self.joined).add(task)
        elif len(words) == 3 and words[0] == "began":
            self.began.add(words[1])
            self.tasks.add(task)
            self.step = words[2]
        elif len(words) == 3 and words[0] == "digest":
            self.digest, self.hardware = words[1], words[2]

    def _take_slurms(self, text: str) -> None:
        self.node_lost = self.node_lost or bool(_NODE_LOST.search(text))
        if not self.error and not self.not_started and _NOT_STARTED.search(text):
            self.not_started = text
        if _TASKS_ENDED.search(text):
            self.error = self.error or ("" if self.cancelled else text.partition("srun: error: ")[2])
        elif _CANCELLED.search(text):
            self.cancelled = self.cancelled or not self.error
        elif "error" in text:
            self.complaint = text


def result_of(
    group: ReplayGroup,
    output: StepOutput,
    code: int | None,
    gone: Mapping[str, str],
    limit_s: float,
    *,
    cut: bool = False,
) -> ReplayResult:
    """Return the result of a group.

    Args:
        group: The group.
        output: The output of its step.
        code: Exit code of its srun; None if srun had not ended after `limit_s` and was ended.
        gone: Node that left the test → the reason.
        limit_s: How long the group had.
        cut: The budget left the group less time than it may need, compared with groups that passed.
    """
    absent = frozenset(group.nodes) & frozenset(gone)
    if absent:
        why = "; ".join(gone[node] for node in sorted(absent))
        return ReplayResult(group, ReplayOutcome.NOT_RUN, why, absent)
    missing = [node for node in group.nodes if node not in output.began]
    if code == 0 and not missing:
        return ReplayResult(group, ReplayOutcome.PASSED)
    said = f"; its last line: {words}" if (words := output.last_words()) else ""
    if not (why := _no_fault(output, missing, code, limit_s)) and code is None and cut and not output.error:
        why = f"no end within the {limit_s:.0f} s that the budget left"
    if why:
        return ReplayResult(group, ReplayOutcome.NOT_RUN, f"{why}{said if output.error else ''}")
    hung = f"it hung: no end within {limit_s:.0f} s"
    failure = output.error or (hung if code is None else f"srun ended with {code}")
    return ReplayResult(group, ReplayOutcome.FAILED, failure + said)


def _no_fault(output: StepOutput, missing: Sequence[str], code: int | None, limit_s: float) -> str:
    """Return why a step that did not pass does not tell anything about its nodes; empty if it does."""
    if output.node_lost:
        return f"Slurm lost a node during the replay: {output.complaint or 'node failure'}"
    if output.not_met:
        return "its ranks could not meet"
    if output.error and not output.not_started:
        return "a port is in use" if output.taken else "it found no memory" if output.no_memory else ""
    if missing:
        why = (
            output.not_started
            or output.complaint
            or (f"not within {limit_s:.0f} s" if code is None else f"srun ended with {code}")
        )
        return f"its step did not start on {', '.join(missing[:4])}: {why}"
    if code is not None and output.cancelled:
        return f"Slurm ended its step{': ' + output.complaint if output.complaint else ''}"
    return ""


def compared(
    results: Sequence[ReplayResult], outputs: Sequence[StepOutput], earlier: Sequence[StepOutput]
) -> list[ReplayResult]:
    """Return the results; replicas with other bits than most of their class are marked as failed.

    If no digest has a majority, all replicas of the class failed, which does not name a node.

    Args:
        results: The results of one wave.
        outputs: The outputs of these groups.
        earlier: The outputs of groups of earlier waves.
    """
    classes: dict[str, Counter[str]] = {}
    for output in (*earlier, *outputs):
        if output.digest:
            classes.setdefault(output.hardware, Counter())[output.digest] += 1
    judged = []
    for result, output in zip(results, outputs, strict=True):
        digests = classes.get(output.hardware, Counter())
        count = digests[output.digest]
        if result.outcome is ReplayOutcome.PASSED and output.digest and 2 * count <= digests.total() > count:
            most = digests.total() - count
            reason = f"its replica computed other bits than {most} of {digests.total()} replicas of the same kind"
            result = ReplayResult(result.group, ReplayOutcome.FAILED, reason)  # noqa: PLW2901 (the judged one)
        judged.append(result)
    return judged
