"""Tells why a rank ended: from its exit code, its signal and its last lines of output, as one cause.

The rules of `diagnose` read the lines. This module decides which of these lines can be the reason for a rank's end.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from signal import Signals

from slurm_robust.core.model import SignalKind
from slurm_robust.diagnose.findings import LogFinding, Matcher, findings
from slurm_robust.diagnose.root import diagnose
from slurm_robust.diagnose.signature import signature
from slurm_robust.diagnose.taxonomy import AboutNode, Blame
from slurm_robust.localize.evidence import Evidence, RaisedException, RankExit
from slurm_robust.localize.stacks.process_tree import rank_frames, shuts_down


class Cause(enum.Enum):
    """The reasons why a rank may end, roots before victims."""

    LAUNCH = "Slurm could not start it"
    HARDWARE = "its machine complains of itself"
    EITHER = "an error that a broken node and a wrong program both cause"
    SHARED = "an outage of something that nodes share"
    USER_CODE = "an error of the program"
    DISK_FULL = "no space left"
    OOM = "killed for memory"
    SIGNAL = "a signal"
    FAILED = "a non-zero exit without a known reason"
    VANISHED = "it vanished"
    ENDED_FROM_OUTSIDE = "ended from outside"
    PEER_LOST = "it lost a peer"
    FINISHED = "it finished"


@dataclass(frozen=True)
class ExitCause:
    """A cause, with the line or fact that shows it.

    Attributes:
        detail: The line, or the fact in words.
        signature: A text that is equal for equal failures, also of other ranks and attempts.
        finding: The line as a rule has recognised it; None if no rule has recognised a line.
        one_of: Fewer ranks have printed the line than have this cause, and it is not known which ones.
    """

    cause: Cause
    detail: str
    signature: str
    finding: LogFinding | None = None
    one_of: bool = False

    @property
    def of_peer(self) -> bool:
        """Whether the line is about a peer or the link to it, and so tells nothing about the rank's own node."""
        return self.finding is not None and self.finding.rule.scope is AboutNode.PEER

    @property
    def unstartable(self) -> bool:
        """Whether the line says that the program to start does not exist, or that the step cannot be made so."""
        return self.category == "launch_failed" and _UNSTARTABLE.search(self.detail) is not None

    @property
    def category(self) -> str:
        """The category of its line, empty if it has no line."""
        return self.finding.category.name if self.finding is not None else ""


_PATH = re.compile(r"'(/[^']+)'|\"(/[^\"]+)\"")
_SLURMS = re.compile(r"^(?:\d+: )?(?:srun|slurmstepd\S*): ")
_NO_PROGRAM = re.compile(r"error: execve\(\): (?!\S*/slurm_script)")
_UNSTARTABLE = re.compile(
    _NO_PROGRAM.pattern + r"|command not found|can.t open file|Exec format error|execvp error|"
    r"Unable to create step for job \d+: (?:Invalid|Requested node configuration|Memory|More)"
)
_GRES = re.compile(r"srun: error: Unable to create step for job \d+: Invalid generic resource")
_INTERRUPTED = re.compile(r"\b(KeyboardInterrupt|SignalException)\b(?::|\s*$)")
_INTERRUPTIONS = {"KeyboardInterrupt": "SIGINT", "SignalException": "SIGTERM"}
_BY_SLURM = ("slurm_error", "launch_failed")
"""Categories of Slurm's own lines that may be a reason, but only for a step that did not begin. For the end of a rank,
Slurm's lines repeat what is known (a task was killed, the connection to a dead node broke), or are of another step."""
_CONNECTION = re.compile(r"\b(?:Connection(?:Reset|Aborted|Refused)|BrokenPipe)Error\b")
_LOST_PEER = ("peer_lost", "comm_timeout", "nccl_error")
"""NCCL's errors without a reason mostly follow from another rank's end."""
_TOGETHER_S = 30.0
_ONE_REPORT_S = 1e-4
"""Ends that stem from one line of srun's reports have times that are closer than this."""
_OF_DEVICES = ("cuda_error", "rdma_error")
_LEAST_WEIGHT = 10
"""A line with less weight is not a reason for an end."""
_TEXT_CHARS = 160
_AT_ONCE = (Signals.SIGKILL, Signals.SIGSEGV, Signals.SIGBUS, Signals.SIGILL, Signals.SIGFPE)
"""Ends that leave a rank no time to print anything."""
_FROM_OUTSIDE = (Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP, Signals.SIGUSR1, Signals.SIGUSR2)


def signal_of(ended: RankExit) -> int:
    """Return the number of the signal that ended the rank, also if a shell reported it as 128 + n; 0 for none."""
    if ended.signal:
        return ended.signal
    code = ended.exit_code or 0
    return code - 128 if 128 < code < 128 + 65 else 0


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL`, or a text with its number if it has no name here."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


@functools.lru_cache(maxsize=1)
def known_ends(evidence: Evidence) -> list[tuple[RankExit, ExitCause]]:
    """Return each ended rank with its cause, and ranks that raised an exception and have not ended yet, by time.

    The result is kept: several votes ask for it, and reading the lines of ten thousand ranks takes seconds.
    """
    nothing = RaisedException(0.0, ())
    exits = [replace(e, last_lines=e.last_lines or evidence.raised.get(e.rank, nothing).lines) for e in evidence.exits]
    ended = {e.rank for e in exits}
    exits += [
        RankExit(rank, evidence.rank_nodes.get(rank, ""), raised.at_s, 1, last_lines=raised.lines)
        for rank, raised in evidence.raised.items()
        if rank not in ended and _goes_no_further(evidence, rank, raised.at_s)
    ]
    found = exit_causes(exits, evidence.rules)
    return [(e, f) for e, f in found if e.rank in ended or _ends_it(f)]


def _goes_no_further(evidence: Evidence, rank: int, raised_at_s: float) -> bool:
    """Return whether a rank that raised an exception has come to its end, and did not just print it and go on.

    It has if its interpreter shuts down; or if the capture does not show its stack, and other ranks ended soon after.
    """
    if any(s.kind is SignalKind.NODE_DOWN for s in evidence.node_signals):
        return False  # a dead node explains whatever others have raised
    stacks = [r for r in evidence.captures[-1].ranks if r.rank == rank] if evidence.captures else []
    frames = rank_frames(stacks[0]) if stacks else None
    if frames is not None:
        return shuts_down(frames)
    return any(abs(e.at_s - raised_at_s) <= _TOGETHER_S for e in evidence.exits)


def _ends_it(cause: ExitCause) -> bool:
    """Return whether an exception with this line is a reason to count its rank as ended."""
    return cause.finding is not None and cause.finding.in_traceback and cause.cause not in _NO_REASON


def exit_causes(exits: Iterable[RankExit], rules: Matcher | None = None) -> list[tuple[RankExit, ExitCause]]:
    """Return why each of these ranks ended, in the order of their ends.

    Lines that do not name a rank count as lines of the node on which ranks failed, if that is a single node, and no
    rank lost a peer. Without `rules`, the package's own rules are used.
    """
    ended = sorted(exits, key=lambda e: (e.at_s, e.rank))
    nodes = {e.node for e in ended if e.exit_code != 0 or e.signal}
    # Ten thousand ranks share these lines: they are read once.
    texts = {id(lines): lines for e in ended for lines in (e.last_lines, e.shared_lines)}
    of_step = {id(e.last_lines) for e in ended if e.rank < 0}
    read = {key: _reasons(lines, rules, of_step=key in of_step) for key, lines in texts.items()}
    lost = any(_lost_peer(f) for found in read.values() for f in found)
    alone = len(nodes) == 1 and "" not in nodes and not lost
    silent: dict[int, list[RankExit]] = {}
    for e in ended:
        if _says_nothing(e, read[id(e.last_lines)]):
            silent.setdefault(id(e.shared_lines), []).append(e)
    shared: dict[int, ExitCause] = {}
    for key, members in silent.items():
        shared.update(_dealt(members, texts[key], read[key], _from_shared(read[key], alone=alone)))
    return [(e, _exit_cause(e, read[id(e.last_lines)], shared.get(id(e)))) for e in ended]


def _says_nothing(ended: RankExit, own: Sequence[LogFinding]) -> bool:
    """Return whether neither the rank's own lines nor its exit say why it ended: lines that name no rank may say so."""
    well = ended.exit_code == 0 and not signal_of(ended)
    return not (well or ended.oom_killed or signal_of(ended) in _AT_ONCE) and _from_own(own) is None


def _dealt(
    ended: Sequence[RankExit], lines: Sequence[str], found: Sequence[LogFinding], cause: ExitCause | None
) -> dict[int, ExitCause]:
    """Return the cause of each of these ends, by the end's id, from lines that do not name a rank.

    An exception is the cause of as many ranks as there are tracebacks of it: of the ranks that ended first. The other
    ranks have lost a peer if a rank says that it has lost one; else only their exit codes are known.
    """
    if cause is None:
        return {}
    root, times = cause.finding, len(ended)
    if root is not None and root.in_traceback and cause.cause not in _NO_REASON:
        # Tracebacks of ranks that print at the same time are mixed: the last line alone tells one.
        same_lines = sum(line.strip() == root.text.strip() for line in lines)
        times = max(same_lines, sum(signature(f) == signature(root) for f in found))
    # Python ends with 1 after an exception; a rank that ended in another way is less likely to have printed it.
    likely = sorted(ended, key=lambda e: e.exit_code != 1)
    last = likely[min(times, len(likely)) - 1]
    beside = [e for e in likely[times:] if e.node == last.node and 0 <= e.at_s - last.at_s <= _ONE_REPORT_S]
    theirs, after = replace(cause, one_of=bool(beside)), _from_own([f for f in found if _lost_peer(f)])
    rest = dict.fromkeys(map(id, ended), after) if after is not None else {}
    return {**rest, **dict.fromkeys(map(id, (*likely[:times], *beside)), theirs)}


def unseen_ends(causes: Sequence[tuple[RankExit, ExitCause]]) -> list[tuple[RankExit, ExitCause]]:
    """Return the ends of which only the disappearance is known, if other ends are: these ranks may have finished."""
    unseen = [(e, f) for e, f in causes if f.cause is Cause.VANISHED]
    return unseen if len(unseen) < len(causes) else []


def _exit_cause(ended: RankExit, own: Sequence[LogFinding], shared: ExitCause | None) -> ExitCause:
    number = signal_of(ended)
    if ended.oom_killed:
        return ExitCause(Cause.OOM, "the kernel killed it for memory", "oom")
    if ended.exit_code == 0 and not number:
        return ExitCause(Cause.FINISHED, "exit code 0", "finished")
    at_once = number in _AT_ONCE
    # A rank that was killed had no time to print a reason: the program survived the errors that it printed before.
    read = _from_own([f for f in own if f.blame in (Blame.NODE, Blame.EITHER)] if at_once else own)
    if read is None and not at_once:
        read = shared
    if read is not None and not _chosen(ended.exit_code, read):
        return read
    if number:
        cause = Cause.ENDED_FROM_OUTSIDE if number in _FROM_OUTSIDE else Cause.SIGNAL
        return ExitCause(cause, signal_name(number), signal_name(number))
    if ended.exit_code is None:
        return ExitCause(Cause.VANISHED, "no exit code was seen", "vanished")
    return ExitCause(Cause.FAILED, f"exit code {ended.exit_code}", f"exit {ended.exit_code}")


def _chosen(exit_code: int | None, read: ExitCause) -> bool:
    """Return whether the program chose its exit code itself, whatever it has printed.

    Python ends with 1 after an uncaught exception. With another code, an exception that no rule knows was caught, or
    something around the program ended it: `timeout` (124), a handler, a shell.
    """
    vague = read.cause is Cause.FAILED and read.finding is not None and read.finding.in_traceback
    return vague and exit_code not in (None, 1) and not 128 < (exit_code or 0) < 128 + 65


def in_words(finding: ExitCause) -> bool:
    """Return whether only the message of the error is known, and neither program nor node is known to cause it."""
    return finding.cause is Cause.EITHER or (finding.cause is Cause.FAILED and finding.finding is not None)


def hardware_line(lines: Sequence[str], rules: Matcher | None = None) -> str:
    """Return the first line in which a machine complains, or else a device's first error, shortened; empty if none."""
    found = _reasons(lines, rules)
    read = [f for f in found if f.blame is Blame.NODE] or [f for f in found if _cause(f) is Cause.EITHER]
    return read[0].text[:_TEXT_CHARS] if read else ""


def root_of_all(exits: Iterable[RankExit], rules: Matcher | None = None) -> LogFinding | None:
    """Return the root among all lines of these ranks, whichever rank printed it; None if no line tells anything."""
    texts = {id(lines): lines for e in exits for lines in (e.last_lines, e.shared_lines)}
    return diagnose([finding for lines in texts.values() for finding in _reasons(lines, rules)]).root


def path_of(detail: str) -> str:
    """Return the path that an error message names; empty if it does not name a path."""
    found = _PATH.search(detail)
    return (found[1] or found[2]) if found else ""


def _reasons(lines: Sequence[str], rules: Matcher | None, *, of_step: bool = False) -> list[LogFinding]:
    """Return what in these lines may be the reason for an end: of a rank, or of a step that may never have begun."""
    kept: list[LogFinding] = []
    dropped = False
    if not lines:
        return kept  # without reading the rules
    for finding in findings(lines, rules=rules):
        # An exception that was raised while a lost peer was handled is not an error of its own.
        # But a service's own error, raised for a connection that broke or was refused, tells whose connection it was.
        of_service = finding.blame is Blame.SHARED and bool(kept) and _CONNECTION.search(kept[-1].text) is not None
        dropped = finding.chained and not of_service and (dropped or (bool(kept) and _lost_peer(kept[-1])))
        if not dropped and not finding.mild and _may_be_reason(finding, of_step=of_step):
            kept.append(finding)
    if any(f.in_traceback for f in kept):
        # The process ended by an exception; an error that was only logged before is not the reason, unless it is a
        # machine's.
        kept = [f for f in kept if f.in_traceback or f.blame in (Blame.NODE, Blame.EITHER)]
    elif any(map(_lost_peer, kept)):
        # A service that did not answer was logged, and training went on until a peer was lost.
        kept = [f for f in kept if f.blame is not Blame.SHARED]
    return kept


def _may_be_reason(finding: LogFinding, *, of_step: bool) -> bool:
    if _SLURMS.match(finding.text):
        of_others = finding.blame in (Blame.NODE, Blame.SHARED)
        of_program = _NO_PROGRAM.search(finding.text) is not None
        return of_program or (of_step and (of_others or finding.category.name in _BY_SLURM))
    if _INTERRUPTED.search(finding.text) is not None or _lost_peer(finding):
        return True
    return finding.blame is not Blame.NOBODY and finding.rule.weight >= _LEAST_WEIGHT


def _lost_peer(finding: LogFinding) -> bool:
    return finding.category.name in _LOST_PEER


def _from_shared(found: Sequence[LogFinding], *, alone: bool) -> ExitCause | None:
    """Return the cause from lines that do not name a rank: any rank may have printed them, so they blame no node."""
    if not alone and any(f.blame is Blame.NODE or f.category.name in _OF_DEVICES for f in found):
        return None  # the root, on an unknown node: other messages may only follow from it
    if alone and any(f.blame is Blame.NODE and not f.in_traceback for f in found):
        return None  # a warning of any rank
    return _from_own(found)


def _from_own(found: Sequence[LogFinding]) -> ExitCause | None:
    root = diagnose(found).root
    if root is None:
        return None
    cause, text = _cause(root), root.text[:_TEXT_CHARS]
    if cause is Cause.ENDED_FROM_OUTSIDE and (interrupted := _INTERRUPTED.search(root.text)) is not None:
        return ExitCause(cause, interrupted[1], _INTERRUPTIONS[interrupted[1]], root)
    return ExitCause(cause, text, _SIGNATURES.get(cause) or signature(root), root)


_HALF_READ = ("checkpoint_mismatch", "bad_data", "shared_memory")
_NO_REASON = (Cause.PEER_LOST, Cause.ENDED_FROM_OUTSIDE, Cause.FINISHED)
_DOES_NOT_FIT = re.compile(r"state_dict|size mismatch|(?:missing|unexpected) key|parameter group", re.IGNORECASE)
_BY_CATEGORY = {
    "disk_full": Cause.DISK_FULL,
    "host_oom": Cause.OOM,
    "launch_failed": Cause.FAILED,  # nothing has run: another try costs little, and no node is known
    "address_in_use": Cause.EITHER,  # a process of an earlier attempt may hold the port, on that node
    **dict.fromkeys(_LOST_PEER, Cause.PEER_LOST),
}
_BY_BLAME = {Blame.NODE: Cause.HARDWARE, Blame.PROGRAM: Cause.USER_CODE}
_SIGNATURES = {Cause.LAUNCH: "launch", Cause.DISK_FULL: "disk full", Cause.OOM: "oom", Cause.PEER_LOST: "peer lost"}


def _cause(finding: LogFinding) -> Cause:
    category, blame = finding.category, finding.blame
    if _GRES.search(finding.text):
        return Cause.LAUNCH
    if category.name in _BY_CATEGORY:
        return _BY_CATEGORY[category.name]
    if category.consequence:
        return Cause.ENDED_FROM_OUTSIDE
    # Also by its category: an error of storage may come from a local disk, but no node is evicted for an outage.
    if blame is not Blame.NODE and Blame.SHARED in (category.blame, blame):
        return Cause.SHARED
    # A vague line does not stop a job, and neither does half-read data: the next attempt may read all data, or be
    # given an older checkpoint.
    vague = finding.rule.vague
    half_read = category.name in _HALF_READ and not _DOES_NOT_FIT.search(finding.text)
    if blame is Blame.PROGRAM and (vague or half_read):
        return Cause.FAILED
    return _BY_BLAME.get(blame) or (Cause.FAILED if vague else Cause.EITHER)
