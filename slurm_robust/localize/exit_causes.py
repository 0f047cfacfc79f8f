"""Why did a rank end? Its exit code, signal and last lines of output, as one cause."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from signal import Signals

from slurm_robust.diagnose.lines import without_values
from slurm_robust.localize.evidence import RankExit


class Cause(enum.Enum):
    """Why a rank ended, roots before victims."""

    LAUNCH = "Slurm could not start it"
    HARDWARE = "a hardware error message"
    DEVICE = "an error of its GPU, which a broken one and a wrong program both cause"
    USER_CODE = "an exception of the program"
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
    """A cause, with the line or fact that shows it; `signature` is the same for the same failure elsewhere."""

    cause: Cause
    detail: str
    signature: str


_HARDWARE = re.compile(
    r"uncorrectable (?:ECC|NVLink)|ECC error|GPU has fallen off the bus|CUDA_ERROR_(?:ECC|NO_DEVICE|DEVICE_UNAVAILABLE|"
    r"HARDWARE)|device(?:s)? unavailable|no CUDA-capable device|system not yet initialized|system has unsupported "
    r"display driver|NVML: (?:GPU is lost|Driver/library)|Unable to determine the device handle|hardware stack error|"
    r"Stale file handle|Transport endpoint is not connected|Input/output error|Read-only file system|\bXid\b",
    re.IGNORECASE,
)
_DEVICE = re.compile(
    r"(?:CUDA|HIP) (?:driver )?(?:error|failure)\b|unhandled cuda error|ncclUnhandledCudaError|cudaError[A-Z]\w+|"
    r"CUDA_ERROR_\w+|(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_\w+|CUFFT_\w+|cuDNN error|NVLink error|"
    r"illegal memory access|misaligned address|unspecified launch failure",
    re.IGNORECASE,
)
_DISK_FULL = re.compile(
    r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]|\bENOSPC\b|\bEDQUOT\b|"
    # torch.save keeps the error's number to itself: other faults of a disk say the same.
    r"PytorchStreamWriter failed writing|inline_container\.cc.*unexpected pos|basic_ios::clear: iostream error",
    re.IGNORECASE,
)
_PATH = re.compile(r"'(/[^']+)'|\"(/[^\"]+)\"")
_PEER = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|Connection reset|Connection refused|Broken pipe|"
    r"remote (?:process|worker) (?:has )?(?:exited|crashing|closed)|ncclRemoteError|NCCL.*remote|"
    r"Socket (?:Timeout|closed)|socketPollConnect|ncclSystemError|Watchdog caught collective operation timeout|"
    r"\[c10d\].*timed? ?out|Timed out (?:waiting|after) .*(?:recv|send|rank|operation)|"
    r"Application timeout caused pair closure|"
    r"DistStoreError|DistNetworkError|DistBackendError|monitoredBarrier|Some NCCL operations have failed|"
    r"failed to (?:recv|send)|Rendezvous\w+Error|Gloo.*(?:timeout|timed out)|process group (?:watchdog|timeout)",
    re.IGNORECASE,
)
_PORT_TAKEN = re.compile(
    r"\bEADDRINUSE\b|address already in use|server socket has failed to (?:bind|listen)", re.IGNORECASE
)
_BAD_LOSS = re.compile(
    r"\bloss\b\W{0,4}(?:(?:is|was|became|of|has become)\b\W{0,3})?(?:nan|[+-]?inf(?:inity)?|not finite|non-?finite)\b|"
    r"\bnan\b.{0,40}\bloss\b|non-?finite loss|FloatingPointError|returned nan values",
    re.IGNORECASE,
)
_GPU_MEMORY = re.compile(
    r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|"
    r"CUBLAS_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(
    r"^\s*(?:\[?rank ?\d+\]?:?\s*|\d+: )?(?:[A-Za-z_]\w*\.)*"
    r"([A-Z]\w*(?:Error|Exception|Interrupt|Failure))\b(?::|\s*$)"
)
_USER_EXCEPTIONS = frozenset(
    {"TypeError", "NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "AttributeError", "KeyError",
     "IndexError", "SyntaxError", "IndentationError", "TabError", "AssertionError", "ValueError", "ZeroDivisionError",
     "NotImplementedError", "RecursionError", "FileNotFoundError", "PermissionError", "IsADirectoryError",
     "NotADirectoryError", "FileExistsError", "UnicodeDecodeError", "UnicodeEncodeError", "JSONDecodeError",
     "OverflowError", "FloatingPointError", "LookupError", "ArgumentError", "CalledProcessError", "ValidationError",
     "ConfigError",
     "ConfigAttributeError", "MissingConfigException", "OutOfMemoryError", "StopIteration", "UnpicklingError"}
)  # fmt: skip
_USER_WORDS = re.compile(
    r"size mismatch|shapes? cannot be multiplied|must match the size|Expected all tensors|"
    r"Error\(s\) in loading state_dict|"
    r"device-side assert|cudaErrorAssert|CUDA_ERROR_ASSERT|no kernel image is available|invalid device function|"
    r"invalid configuration argument|expected scalar type|not implemented for|"
    r"Trying to backward through the graph a second time|"
    r"does not require grad|Expected to have finished reduction|"
    r"collective mismatch in your code|mismatch between collective|unrecognized arguments|error: argument",
    re.IGNORECASE,
)
_LAUNCH = re.compile(r"srun: error: Unable to create step for job \d+: Invalid generic resource")
# A watchdog of NCCL's quotes the error of its own device: that goes before what it says of peers.
_BY_PATTERN = (
    (Cause.LAUNCH, _LAUNCH, "launch"),
    (Cause.USER_CODE, _GPU_MEMORY, "cuda out of memory"),
    (Cause.USER_CODE, _USER_WORDS, ""),
    (Cause.DEVICE, _DEVICE, ""),
    (Cause.FAILED, _PORT_TAKEN, "address in use"),
    (Cause.PEER_LOST, _PEER, "peer lost"),
    (Cause.DISK_FULL, _DISK_FULL, "disk full"),
)
_INTERRUPTIONS = {"KeyboardInterrupt": "SIGINT", "SignalException": "SIGTERM"}
_TORCHRUN = ("ChildFailedError",)
"""torchrun's own end, which only says that a worker failed."""
_LABEL = re.compile(r"^\s*(?:\d+: )?(?:\[?rank ?\d+\]?:)?\s*")
_SHAPE_MAX = 100
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_AT_ONCE = (Signals.SIGKILL, Signals.SIGSEGV, Signals.SIGBUS, Signals.SIGILL, Signals.SIGFPE)
"""Ends that leave a rank no time to print anything."""
_FROM_OUTSIDE = (Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP, Signals.SIGUSR1, Signals.SIGUSR2)


def signal_of(ended: RankExit) -> int:
    """Number of the signal that ended it, also where a shell in between made it 128 + n; 0 for none."""
    if ended.signal:
        return ended.signal
    code = ended.exit_code or 0
    return code - 128 if 128 < code < 128 + 65 else 0


def signal_name(number: int) -> str:
    """`SIGKILL`, or the number where it has no name here."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_causes(exits: Iterable[RankExit]) -> list[tuple[RankExit, ExitCause]]:
    """Why each of these ranks ended, in the order of their ends.

    Lines that name no rank are those of the one node on which ranks failed, if it is one, and nobody lost a peer.
    """
    ended = sorted(exits, key=lambda e: (e.at_s, e.rank))
    nodes = {e.node for e in ended if e.exit_code != 0 or e.signal}
    alone = len(nodes) == 1 and "" not in nodes
    # Ten thousand ranks share these lines: they are read once.
    shared = {id(e.shared_lines): e.shared_lines for e in ended}
    spoken = chain.from_iterable((*(e.last_lines for e in ended), *shared.values()))
    alone = alone and not any(_PEER.search(line) for line in spoken)
    read = {key: _from_shared(lines, alone=alone) for key, lines in shared.items()}
    return [(e, _exit_cause(e, read[id(e.shared_lines)])) for e in ended]


def exit_cause(ended: RankExit) -> ExitCause:
    """Why one rank ended, as far as it is known without the others."""
    return _exit_cause(ended, _from_shared(ended.shared_lines, alone=False))


def _exit_cause(ended: RankExit, shared: ExitCause | None) -> ExitCause:
    number = signal_of(ended)
    if ended.oom_killed:
        return ExitCause(Cause.OOM, "the kernel killed it for memory", "oom")
    if ended.exit_code == 0 and not number:
        return ExitCause(Cause.FINISHED, "exit code 0", "finished")
    read = _from_lines(ended.last_lines)
    if read is None and number not in _AT_ONCE:
        read = shared
    if read is not None:
        return read
    if number:
        cause = Cause.ENDED_FROM_OUTSIDE if number in _FROM_OUTSIDE else Cause.SIGNAL
        return ExitCause(cause, signal_name(number), signal_name(number))
    if ended.exit_code is None:
        return ExitCause(Cause.VANISHED, "no exit code was seen", "vanished")
    return ExitCause(Cause.FAILED, f"exit code {ended.exit_code}", f"exit {ended.exit_code}")


def in_words(finding: ExitCause) -> bool:
    """Whether it is an error of which only the message is known, and neither program nor node is known to cause it."""
    read = finding.cause is Cause.FAILED and re.fullmatch(r"exit \d+", finding.signature) is None
    return read or finding.cause is Cause.DEVICE


def hardware_line(lines: tuple[str, ...]) -> str:
    """The first of these lines in which hardware complains, or else a GPU's error, shortened; empty for none."""
    read = [line for line in lines if _HARDWARE.search(line)] or [line for line in lines if _about_device(line)]
    return read[0].strip()[:160] if read else ""


def is_frame(line: str) -> bool:
    """Whether a line only shows where a stack stood: its place and its code, which name errors that never happened."""
    rest = _FRAME_LABEL.sub("", line, count=1)
    return rest.startswith(("    ", '  File "', "frame #"))


_FRAME_LABEL = re.compile(r"^(?:\s*\d+: )?(?:\[rank\d+\]: ?)?")


def path_of(detail: str) -> str:
    """The path that an error message names; empty where they name none."""
    found = _PATH.search(detail)
    return (found[1] or found[2]) if found else ""


def shape(text: str) -> str:
    """What a message has in common with the same one elsewhere: no numbers, addresses, paths or ranks."""
    return without_values(_LABEL.sub("", text, count=1))[:_SHAPE_MAX]


def bad_loss_line(lines: tuple[str, ...]) -> str:
    """The last of these lines in which a program says that its loss is not finite, shortened; empty for none."""
    return next((line.strip()[:160] for line in reversed(lines) if _BAD_LOSS.search(line)), "")


def _from_shared(lines: tuple[str, ...], *, alone: bool) -> ExitCause | None:
    """What the lines that name no rank say. They may be any rank's, so that they say nothing of a node's hardware."""
    if not alone and any(_HARDWARE.search(line) or _about_device(line) for line in lines):
        return None  # the root, on an unknown node: other messages may only follow from it
    if alone and any(_HARDWARE.search(line) and not _EXCEPTION.match(line) for line in lines):
        return None  # a warning of any rank
    read = [finding for block in _tracebacks(lines) if (finding := _from_lines(block)) is not None]
    return next((f for f in read if f.cause is not Cause.PEER_LOST), read[0] if read else None)


def _tracebacks(lines: Sequence[str]) -> list[tuple[str, ...]]:
    """Lines of several ranks, split where an exception begins that belongs to none before it."""
    blocks: list[list[str]] = [[]]
    for number, line in enumerate(lines):
        before = lines[max(0, number - 2) : number]
        chained = any(text in earlier for earlier in before for text in _CHAINED)
        if "Traceback (most recent call last)" in line and not chained:
            blocks.append([])
        blocks[-1].append(line)
    return [tuple(block) for block in blocks]


def _about_device(line: str) -> bool:
    read = _from_line(line)
    return read is not None and read.cause is Cause.DEVICE


def _from_lines(lines: tuple[str, ...]) -> ExitCause | None:
    for line in lines:
        if found := _HARDWARE.search(line):
            return ExitCause(Cause.HARDWARE, line.strip()[:160], found[0].lower())
    # The first exception of a chain is the root: what follows happened while it was handled.
    for line in lines:
        if (read := _from_line(line)) is not None:
            return read
    for line in lines:
        if (raised := _EXCEPTION.match(line)) and raised[1] not in _TORCHRUN:
            return ExitCause(Cause.FAILED, line.strip()[:160], shape(line))
    return None


def _from_line(line: str) -> ExitCause | None:
    text = line.strip()[:160]
    for cause, pattern, signature in _BY_PATTERN:
        if match := pattern.search(line):
            return ExitCause(cause, text, signature or shape(line[match.start() :]).lower())
    raised = _EXCEPTION.match(line)
    if raised and raised[1] in _INTERRUPTIONS:
        return ExitCause(Cause.ENDED_FROM_OUTSIDE, raised[1], _INTERRUPTIONS[raised[1]])
    if raised and raised[1] in _USER_EXCEPTIONS:
        return ExitCause(Cause.USER_CODE, text, shape(line))
    return None
