"""Why did a rank end? Its exit code, signal and last lines of output, as one cause."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from signal import Signals

from slurm_robust.localize.evidence import RankExit


class Cause(enum.Enum):
    """Why a rank ended, roots before victims."""

    HARDWARE = "a hardware fault in its own words"
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
class Finding:
    """A cause, with the line or fact that tells it; `signature` is the same for the same failure elsewhere."""

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
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)
_PEER = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|Connection reset|Connection refused|Broken pipe|"
    r"remote (?:process|worker) (?:has )?(?:exited|crashing|closed)|ncclRemoteError|NCCL.*remote|"
    r"Socket (?:Timeout|closed)|socketPollConnect|ncclSystemError|Watchdog caught collective operation timeout|"
    r"\[c10d\].*timed? ?out|Timed out (?:waiting|after) .*(?:recv|send|rank|operation)|"
    r"Application timeout caused pair closure|"
    r"DistStoreError|DistNetworkError|DistBackendError|monitoredBarrier|Some NCCL operations have failed|"
    r"failed to (?:recv|send)|Gloo.*(?:timeout|timed out)|process group (?:watchdog|timeout)",
    re.IGNORECASE,
)
_BAD_LOSS = re.compile(
    r"\bloss\b\W{0,4}(?:(?:is|was|became|of|has become)\b\W{0,3})?(?:nan|[+-]?inf(?:inity)?|not finite|non-?finite)\b|"
    r"\bnan\b.{0,40}\bloss\b|non-?finite loss|FloatingPointError|returned nan values",
    re.IGNORECASE,
)
_GPU_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)
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
    r"device-side assert|expected scalar type|not implemented for|Trying to backward through the graph a second time|"
    r"does not require grad|Expected to have finished reduction|"
    r"collective mismatch in your code|mismatch between collective|unrecognized arguments|error: argument",
    re.IGNORECASE,
)
_BY_PATTERN = (
    (Cause.PEER_LOST, _PEER, "peer lost"),
    (Cause.DISK_FULL, _DISK_FULL, "disk full"),
    (Cause.USER_CODE, _GPU_MEMORY, "cuda out of memory"),
    (Cause.USER_CODE, _USER_WORDS, ""),
)
_AT_ONCE = (Signals.SIGKILL, Signals.SIGSEGV, Signals.SIGBUS, Signals.SIGILL, Signals.SIGFPE)
"""Ends that leave a rank no time for words."""
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


def find(ended: RankExit) -> Finding:
    """Why one rank ended."""
    number = signal_of(ended)
    if ended.oom_killed:
        return Finding(Cause.OOM, "the kernel killed it for memory", "oom")
    if ended.exit_code == 0 and not number:
        return Finding(Cause.FINISHED, "exit code 0", "finished")
    told = _from_lines(ended.last_lines)
    if told is None and number not in _AT_ONCE:
        # What names no rank may be any rank's: never a fault of this one's node, nor more than the signal that took it.
        told = _from_lines(ended.shared_lines, hardware=False)
    if told is not None:
        return told
    if number:
        cause = Cause.ENDED_FROM_OUTSIDE if number in _FROM_OUTSIDE else Cause.SIGNAL
        return Finding(cause, signal_name(number), signal_name(number))
    if ended.exit_code is None:
        return Finding(Cause.VANISHED, "no exit code was seen", "vanished")
    return Finding(Cause.FAILED, f"exit code {ended.exit_code}", f"exit {ended.exit_code}")


def hardware_line(lines: tuple[str, ...]) -> str:
    """The first of these lines in which hardware complains, shortened; empty where there is none."""
    return next((line.strip()[:160] for line in lines if _HARDWARE.search(line)), "")


def bad_loss_line(lines: tuple[str, ...]) -> str:
    """The last of these lines in which a program says that its loss is not finite, shortened; empty for none."""
    return next((line.strip()[:160] for line in reversed(lines) if _BAD_LOSS.search(line)), "")


def _from_lines(lines: tuple[str, ...], *, hardware: bool = True) -> Finding | None:
    for line in lines:
        if found := _HARDWARE.search(line):
            if hardware:
                return Finding(Cause.HARDWARE, line.strip()[:160], found[0].lower())
            return None  # the root, on nobody knows which node: whatever else is said may only follow from it
    # The first exception of a chain is the root: what follows happened while it was handled.
    for line in lines:
        if (told := _from_line(line)) is not None:
            return told
    for line in lines:
        if raised := _EXCEPTION.match(line):
            return Finding(Cause.FAILED, line.strip()[:160], raised[1])
    return None


def _from_line(line: str) -> Finding | None:
    text = line.strip()[:160]
    for cause, pattern, signature in _BY_PATTERN:
        if match := pattern.search(line):
            return Finding(cause, text, signature or match[0].lower())
    raised = _EXCEPTION.match(line)
    if raised and raised[1] == "KeyboardInterrupt":
        return Finding(Cause.ENDED_FROM_OUTSIDE, "KeyboardInterrupt", "SIGINT")
    if raised and raised[1] in _USER_EXCEPTIONS:
        return Finding(Cause.USER_CODE, text, raised[1])
    return None
