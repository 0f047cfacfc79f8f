"""Progress of a rank, reported by the training loop in a few stores: no lock, no system call, no socket, no error.

    from slurm_robust import progress

    progress.mark("imports_done")
    for n, batch in enumerate(batches):
        ...
        progress.step(n, loss=loss_as_a_python_number)
        progress.timing(compute_s=seconds_of_own_work)  # if they are known: finds slow machines
        with progress.phase("evaluate", timeout_s=900):
            evaluate()

This is one file, Python >= 3.8, standard library only; it may be copied into any environment. Importing it opens
nothing. The first call makes one page of anonymous memory: a memfd named `srobust-progress`, allocated before it is
mapped, so that a full or read-only /dev/shm, a container's own mounts and left-over files do not matter. The owner of
the process, and root, find it as `/proc/PID/fd/N -> /memfd:srobust-progress (deleted)` and read it with `read`. Where
it cannot be made, every call does nothing.

A value that is not an `int` or `float` is ignored and not touched: a CUDA tensor is never synchronised. NaN and
infinity are reported. One thread should report; two at once can mix up one record and do no other harm. Forked
children (data loaders) of a process that reports do not report. `SROBUST_PROGRESS=0` switches everything off.

Where Yama lets only ancestors attach (`kernel.yama.ptrace_scope=1`, Ubuntu's default), importing this also allows
processes of the same user to trace this one and its forked children (`prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)`),
so that the node's agent can take its stack when it hangs. Scope 0 allows that everywhere.

The page, native byte order, read by `read`:

    offset  type     content
    0       8 bytes  b"SROBPRG1"; a layout that old readers cannot read gets another name
    8       u32      version; fields are only ever added
    12      u32      size of the page, bytes
    16      i64      pid, as the process sees it
    24      u64      sequence, odd while something is written
    32      u64      calls of step()
    40      i64      step, -1 before the first
    48      f64 x2   time of the last step(): CLOCK_MONOTONIC, CLOCK_REALTIME, seconds; 0 before the first
    64      f64 i64  loss last given, and the call it was given in; call 0: never
    80      f64 i64  gradient norm, the same
    96      u64      calls whose loss was NaN or infinite
    104     u64      phase, an index into PHASES
    112     f64 x2   when the phase began: CLOCK_MONOTONIC, CLOCK_REALTIME
    128     f64      seconds that the phase may take, NaN where not announced
    136     u64      changes of phase
    144     f64 x2   when the page was made: CLOCK_MONOTONIC, CLOCK_REALTIME
    160     i64      the first step that was reported
    168     f64 x2   when: CLOCK_REALTIME, CLOCK_MONOTONIC; 0.0 before it, and the second one in older files
    256     u32 text length in bytes and JSON of the parallel layout, {"tp": 2, "pp": 4}
    768     u64      number of marks, 40 bytes each from 776 on: name (24 bytes, zero-padded), CLOCK_MONOTONIC,
                     CLOCK_REALTIME
    2056    u64      number of timings, 32 bytes each from 2064 on, the nth at place n modulo 48: step (i64), seconds
                     in all, of own work, of communication (f64 x3, NaN where not known); version 2
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import mmap
import os
import struct
import sys
import time
from typing import Any, NamedTuple

PHASES = ("startup", "train", "evaluate", "checkpoint", "idle")
MEMFD_NAME = "srobust-progress"
LINK_NAME = "/memfd:" + MEMFD_NAME
"""The beginning of the descriptor's link in /proc/PID/fd."""
MAGIC = b"SROBPRG1"
VERSION = 2
SIZE_BYTES = 4096

_HEAD = struct.Struct("@8sIIq")
_SEQ_AT, _SEQ = 24, struct.Struct("@Q")
_STEP_AT, _STEP = 32, struct.Struct("@Qqdd")
_LOSS_AT, _GRAD_AT, _VALUE = 64, 80, struct.Struct("@dq")
_NONFINITE_AT = 96
_PHASE_AT, _PHASE = 104, struct.Struct("@QdddQ")
_MADE_AT, _MADE = 144, struct.Struct("@dd")
_FIRST_AT, _FIRST = 160, struct.Struct("@qdd")
_LAYOUT_AT, _LAYOUT_MAX_BYTES = 256, 508
_MARKS_AT, _MARK, _MARKS_MAX = 768, struct.Struct("@24sdd"), 32
_TIMINGS_AT, _TIMING, _TIMINGS_MAX = 2056, struct.Struct("@qddd"), 48
_TRAIN = PHASES.index("train")
_YAMA_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER = 0x59616D61
_MFD_CLOEXEC, _MFD_NOEXEC_SEAL = 1, 8
_READ_TRIES = 50
# Bound now, and not as time.time and time.monotonic: programs and their test libraries replace those.
_monotonic_s = functools.partial(time.clock_gettime, time.CLOCK_MONOTONIC)
_now_s = functools.partial(time.clock_gettime, time.CLOCK_REALTIME)


class StepTiming(NamedTuple):
    """The seconds that a step took; NaN if unknown. `total_s` counts from the end of the step before."""

    step: int
    total_s: float
    compute_s: float
    communication_s: float


class ProgressRecord(NamedTuple):
    """The report of a process.

    `…_monotonic_s` are CLOCK_MONOTONIC of its machine, `…_at_s` seconds since the epoch; 0.0 if the event has not
    happened. `step` is -1 before the first; `loss` and `grad_norm` are the last given, None if never given.
    `phase_timeout_s` is None if it was not announced. `marks` gives each mark's seconds since the epoch.
    """

    pid: int
    version: int
    sequence: int
    calls: int
    step: int
    step_monotonic_s: float
    step_at_s: float
    loss: float | None
    grad_norm: float | None
    nonfinite_losses: int
    phase: str
    phase_monotonic_s: float
    phase_at_s: float
    phase_timeout_s: float | None
    phase_changes: int
    made_monotonic_s: float
    made_at_s: float
    layout: dict[str, int]
    marks: dict[str, float]
    first_step: int = -1
    first_step_at_s: float = 0.0
    timed: int = 0
    """Timings reported so far."""
    timings: tuple[StepTiming, ...] = ()
    """The last 48 of them, oldest first."""
    loss_call: int = 0
    """The call of step() that gave `loss`, counted like `calls`; 0 if none did."""
    first_step_monotonic_s: float = 0.0
    mark_monotonic_s: dict[str, float] | None = None


class _Page:
    """The mapped page of this process, and the only code that writes to it."""

    __slots__ = (
        "before", "calls", "changes", "depth", "fd", "inode", "marks", "memory", "nonfinite", "phase", "timed",
        "timeout_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.calls = 0
        self.changes = 0
        self.depth = 0  # of `with phase(…)` blocks
        self.nonfinite = 0
        self.timed = 0
        self.before = (-1, 0.0)  # the step of the last timing(), and its end: CLOCK_MONOTONIC
        self.phase = 0
        self.timeout_s = math.nan
        self.marks: set[str] = set()
        fd = _memfd()
        try:
            # Allocated now: missing memory must fail here, and not as SIGBUS at a store.
            os.posix_fallocate(fd, 0, SIZE_BYTES)
            self.memory = mmap.mmap(fd, SIZE_BYTES)
            self.inode = os.fstat(fd).st_ino
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd
        now, at = _monotonic_s(), _now_s()
        _STEP.pack_into(self.memory, _STEP_AT, 0, -1, 0.0, 0.0)
        _PHASE.pack_into(self.memory, _PHASE_AT, 0, now, at, math.nan, 0)
        _MADE.pack_into(self.memory, _MADE_AT, now, at)
        _HEAD.pack_into(self.memory, 0, MAGIC, VERSION, SIZE_BYTES, os.getpid())

    def begin(self) -> int:
        """Make the sequence odd, also after an interrupted writer."""
        sequence: int = _SEQ.unpack_from(self.memory, _SEQ_AT)[0] | 1
        _SEQ.pack_into(self.memory, _SEQ_AT, sequence)
        return sequence

    def end(self, sequence: int) -> None:
        _SEQ.pack_into(self.memory, _SEQ_AT, sequence + 1)

    def heal(self) -> None:
        """Make the sequence even after a store that failed half way (a number too large for its field)."""
        with contextlib.suppress(Exception):
            self.end(self.begin())

    def set_phase(self, phase: int, timeout_s: float) -> None:
        self.phase, self.timeout_s = phase, timeout_s
        self.changes += 1
        sequence = self.begin()
        _PHASE.pack_into(self.memory, _PHASE_AT, phase, _monotonic_s(), _now_s(), timeout_s, self.changes)
        self.end(sequence)


_page: _Page | None = None
_off = False
_prctl: Any = None
_complained = False


def _memfd() -> int:
    """Make a memfd, also with a Python that was built against an old C library (conda, uv) and lacks the call.

    Raises:
        OSError: it failed.
    """
    # Sites may forbid executable memfds (vm.memfd_noexec=2); kernels before 6.3 do not know the flag for that.
    for flags in (_MFD_CLOEXEC | _MFD_NOEXEC_SEAL, _MFD_CLOEXEC):
        try:
            if hasattr(os, "memfd_create"):
                return os.memfd_create(MEMFD_NAME, flags)
            import ctypes  # noqa: PLC0415 (only here, and where Yama asks for it)

            fd = int(ctypes.CDLL(None).memfd_create(MEMFD_NAME.encode(), flags))
            if fd >= 0:
                return fd
        except OSError:  # noqa: PERF203 (twice, once a process)
            continue
    raise OSError("memfd_create failed")


def _enable() -> _Page | None:
    """Make the page at the first call. Return None, also from then on, if the page cannot be made."""
    global _page, _off  # noqa: PLW0603 (one page a process)
    if _off:
        return None
    if os.environ.get("SROBUST_PROGRESS") == "0":
        _off = True
        return None
    try:
        _page = _Page()
    except Exception:  # noqa: BLE001 (telemetry must never be the reason that training fails)
        _off = True
    return _page


def step(n: int, loss: float | None = None, grad_norm: float | None = None) -> None:
    """Report that training step `n` is complete, with its loss and gradient norm if the loop has them as numbers.

    This ends `startup`, `idle` and any phase set by `set_phase`, but not the phase of an open `with phase(…)` block.
    """
    page = _page
    if page is None:
        page = _enable()
        if page is None:
            return
    try:
        memory = page.memory
        page.calls = calls = page.calls + 1
        sequence: int = _SEQ.unpack_from(memory, _SEQ_AT)[0] | 1
        _SEQ.pack_into(memory, _SEQ_AT, sequence)
        if not issubclass(type(n), int):  # still a sign of life, of an unknown step
            n = _STEP.unpack_from(memory, _STEP_AT)[1]
        now_s, at_s = _monotonic_s(), _now_s()
        _STEP.pack_into(memory, _STEP_AT, calls, n, now_s, at_s)
        if calls == 1:  # a reader may attach some steps later
            _FIRST.pack_into(memory, _FIRST_AT, n, at_s, now_s)
        # type() and not isinstance(): no code of the object runs. NaN - NaN and inf - inf are not 0.
        if loss is not None and issubclass(type(loss), (int, float)):
            _VALUE.pack_into(memory, _LOSS_AT, loss, calls)
            if loss - loss != 0:
                page.nonfinite += 1
                _SEQ.pack_into(memory, _NONFINITE_AT, page.nonfinite)
        if grad_norm is not None and issubclass(type(grad_norm), (int, float)):
            _VALUE.pack_into(memory, _GRAD_AT, grad_norm, calls)
        _SEQ.pack_into(memory, _SEQ_AT, sequence + 1)
        if page.phase != _TRAIN and not page.depth:
            page.set_phase(_TRAIN, math.nan)
    except Exception:  # noqa: BLE001 (as in _enable)
        page.heal()


def timing(compute_s: float | None = None, communication_s: float | None = None) -> None:
    """Report the seconds that the last step took; call it after `step`.

    `compute_s` is this rank's own work (forward, backward, optimiser) without waiting for others, `communication_s`
    the rest; one of them is enough. On a GPU take them from events of earlier steps, and do not synchronise for them.
    """
    page = _page or _enable()
    if page is None:
        return
    try:
        _, n, ended_s, _ = _STEP.unpack_from(page.memory, _STEP_AT)
        before, before_s = page.before
        page.before = (n, ended_s)
        total_s = ended_s - before_s if n == before + 1 and before_s else math.nan
        at = _TIMINGS_AT + 8 + page.timed % _TIMINGS_MAX * _TIMING.size
        page.timed += 1
        sequence = page.begin()
        _TIMING.pack_into(page.memory, at, n, total_s, _seconds(compute_s), _seconds(communication_s))
        _SEQ.pack_into(page.memory, _TIMINGS_AT, page.timed)
        page.end(sequence)
    except Exception:  # noqa: BLE001 (as in _enable)
        page.heal()


def set_phase(name: str, timeout_s: float | None = None) -> None:
    """Report what the program does from now on, one of PHASES, and how long that may take, if known."""
    page = _page or _enable()
    if page is None:
        return
    try:
        if name not in PHASES:
            _complain(name)
            return
        page.set_phase(PHASES.index(name), _seconds(timeout_s))
    except Exception:  # noqa: BLE001 (as in _enable)
        page.heal()


class phase:  # noqa: N801 (used as `with phase(…)`, like a function)
    """`with phase("evaluate", timeout_s=900): …`: sets that phase in the block, then restores the one before.

    An announced limit replaces the supervisor's own for this phase. An unknown name changes nothing.
    """

    __slots__ = ("_before", "_name", "_timeout_s")

    def __init__(self, name: str, timeout_s: float | None = None) -> None:
        self._name, self._timeout_s = name, timeout_s
        self._before: tuple[int, float] | None = None

    def __enter__(self) -> None:
        """Change to the phase."""
        page = _page or _enable()
        if page is None:
            return
        self._before = (page.phase, page.timeout_s)
        page.depth += 1
        set_phase(self._name, self._timeout_s)

    def __exit__(self, *_: object) -> None:
        """Change back."""
        page, before, self._before = _page, self._before, None
        if page is None or before is None:
            return
        page.depth -= 1
        with contextlib.suppress(Exception):
            page.set_phase(*before)


def layout(**sizes: int) -> None:
    """Report how the ranks are grouped: `layout(tp=2, pp=4, dp=4)`. Only positive whole numbers count."""
    page = _page or _enable()
    if page is None:
        return
    try:
        known = {name: size for name, size in sizes.items() if type(size) is int and size > 0}
        text = json.dumps(known, separators=(",", ":")).encode()
        if len(text) > _LAYOUT_MAX_BYTES:
            return
        sequence = page.begin()
        struct.pack_into(f"@I{len(text)}s", page.memory, _LAYOUT_AT, len(text), text)
        page.end(sequence)
    except Exception:  # noqa: BLE001 (as in _enable)
        page.heal()


def mark(name: str) -> None:
    """Report the time of a start-up event, once: imports_done, process_groups_ready, checkpoint_loaded.

    The first one of a name counts; at most 32 marks, names of at most 24 bytes.
    """
    page = _page or _enable()
    if page is None:
        return
    try:
        if name in page.marks or len(page.marks) >= _MARKS_MAX:
            return
        at = _MARKS_AT + 8 + len(page.marks) * _MARK.size
        page.marks.add(name)
        sequence = page.begin()
        _MARK.pack_into(page.memory, at, name.encode()[:24], _monotonic_s(), _now_s())
        _SEQ.pack_into(page.memory, _MARKS_AT, len(page.marks))
        page.end(sequence)
    except Exception:  # noqa: BLE001 (as in _enable)
        page.heal()


def find(pid: int, proc: str = "/proc") -> str | None:
    """Return the path of a process's page, to be read; None if it has none or we may not read its /proc."""
    folder = f"{proc}/{pid}/fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208 (pathlib costs time on each tick of an agent)
    except OSError:
        return None
    for name in names:
        path = folder + "/" + name
        try:
            if os.readlink(path).startswith(LINK_NAME):
                return path
        except OSError:  # closed meanwhile
            continue
    return None


def read(source: int | bytes) -> ProgressRecord | None:
    """Read a page, from an open descriptor of it or from a copy of its bytes.

    None if it is no such page, or was being written at each try. From a descriptor the record is never torn: the
    sequence is read before and after, and two readings must agree (some processors reorder stores).
    """
    if isinstance(source, bytes):
        return _decode(source)
    try:
        last = b""
        for _ in range(_READ_TRIES):
            before = os.pread(source, 8, _SEQ_AT)
            page = os.pread(source, SIZE_BYTES, 0)
            if len(page) < SIZE_BYTES or page[:8] != MAGIC:
                return None
            settled = before == page[_SEQ_AT : _SEQ_AT + 8] == os.pread(source, 8, _SEQ_AT)
            if settled and page == last and not page[_SEQ_AT if sys.byteorder == "little" else _SEQ_AT + 7] & 1:
                return _decode(page)
            last = page if settled else b""
    except OSError:
        pass
    return None


def _decode(page: bytes) -> ProgressRecord | None:
    if len(page) < SIZE_BYTES or page[:8] != MAGIC:
        return None
    _, version, _, pid = _HEAD.unpack_from(page, 0)
    sequence = _SEQ.unpack_from(page, _SEQ_AT)[0]
    if sequence & 1:
        return None
    calls, n, step_monotonic_s, step_at_s = _STEP.unpack_from(page, _STEP_AT)
    loss, loss_call = _VALUE.unpack_from(page, _LOSS_AT)
    grad_norm, grad_call = _VALUE.unpack_from(page, _GRAD_AT)
    phase_index, phase_monotonic_s, phase_at_s, timeout_s, changes = _PHASE.unpack_from(page, _PHASE_AT)
    made_monotonic_s, made_at_s = _MADE.unpack_from(page, _MADE_AT)
    first_step, first_step_at_s, first_step_monotonic_s = _FIRST.unpack_from(page, _FIRST_AT)
    if first_step_at_s > 0 and not first_step_monotonic_s:  # an older file wrote it
        first_step_monotonic_s = min(made_monotonic_s + max(0.0, first_step_at_s - made_at_s), step_monotonic_s)
    marks, mark_monotonic_s = {}, {}
    for i in range(min(_SEQ.unpack_from(page, _MARKS_AT)[0], _MARKS_MAX)):
        raw_name, monotonic_s, at_s = _MARK.unpack_from(page, _MARKS_AT + 8 + i * _MARK.size)
        name = raw_name.rstrip(b"\0").decode("ascii", "replace")
        marks[name], mark_monotonic_s[name] = at_s, monotonic_s
    timed = _SEQ.unpack_from(page, _TIMINGS_AT)[0] if version >= 2 else 0
    slots = (i % _TIMINGS_MAX for i in range(max(0, timed - _TIMINGS_MAX), timed))
    size = min(struct.unpack_from("@I", page, _LAYOUT_AT)[0], _LAYOUT_MAX_BYTES)
    try:
        raw = json.loads(page[_LAYOUT_AT + 4 : _LAYOUT_AT + 4 + size] or b"{}")
        sizes = {str(k): v for k, v in raw.items() if type(v) is int and v > 0}
    except (ValueError, AttributeError):
        sizes = {}
    return ProgressRecord(
        pid=pid,
        version=version,
        sequence=sequence,
        calls=calls,
        step=n,
        step_monotonic_s=step_monotonic_s,
        step_at_s=step_at_s,
        loss=loss if loss_call > 0 else None,
        grad_norm=grad_norm if grad_call > 0 else None,
        nonfinite_losses=_SEQ.unpack_from(page, _NONFINITE_AT)[0],
        # A later version may know more phases: an unknown one counts as training, the strictest.
        phase=PHASES[phase_index] if phase_index < len(PHASES) else "train",
        phase_monotonic_s=phase_monotonic_s,
        phase_at_s=phase_at_s,
        phase_timeout_s=timeout_s if timeout_s == timeout_s else None,  # noqa: PLR0124 (false for NaN alone)
        phase_changes=changes,
        made_monotonic_s=made_monotonic_s,
        made_at_s=made_at_s,
        layout=sizes,
        marks=marks,
        first_step=first_step if first_step_at_s > 0 else -1,
        first_step_at_s=first_step_at_s,
        timed=timed,
        timings=tuple(StepTiming(*_TIMING.unpack_from(page, _TIMINGS_AT + 8 + i * _TIMING.size)) for i in slots),
        loss_call=loss_call,
        first_step_monotonic_s=first_step_monotonic_s,
        mark_monotonic_s=mark_monotonic_s or None,
    )


def _seconds(value: object) -> float:
    return value if issubclass(type(value), (int, float)) else math.nan  # type: ignore[return-value]


def _complain(name: object) -> None:
    """Report a phase that does not exist, once; training continues."""
    global _complained  # noqa: PLW0603 (once a process)
    if not _complained:
        _complained = True
        sys.stderr.write(f"slurm_robust.progress: phase {name!r:.40} is ignored; known phases: {', '.join(PHASES)}\n")


def _after_fork_in_child() -> None:
    """Give up the page: a child must neither write to its parent's nor be taken for its parent."""
    global _page, _off  # noqa: PLW0603 (as in _enable)
    page, _page = _page, None
    if page is not None:
        _off = True
        try:
            if os.fstat(page.fd).st_ino == page.inode:  # the program may have closed it, and reuse the number
                os.close(page.fd)
        except OSError:
            pass
    _allow_tracer()


def _allow_tracer() -> None:
    global _prctl  # noqa: PLW0603 (looked up once: a fork handler should do little)
    try:
        if _prctl is None:
            with open(_YAMA_SCOPE) as file:  # noqa: PTH123 (as in find)
                if file.read().strip() != "1":
                    _prctl = False
                    return
            import ctypes  # noqa: PLC0415 (only where Yama asks for it)

            _prctl = ctypes.CDLL(None).prctl
            _prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
        if _prctl:
            _prctl(_PR_SET_PTRACER, 2 ** (8 * struct.calcsize("@L")) - 1, 0, 0, 0)
    except Exception:  # noqa: BLE001 (as in _enable: no Yama, no /proc, no ctypes)
        _prctl = False


if os.environ.get("SROBUST_PROGRESS") != "0":
    os.register_at_fork(after_in_child=_after_fork_in_child)
    _allow_tracer()
