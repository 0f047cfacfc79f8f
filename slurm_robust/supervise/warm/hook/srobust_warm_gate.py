"""Imports in a warm process what the running ranks have imported, waits, and becomes the program at its release.

It listens on an abstract Unix socket named after its pid. The agent of its node sends one JSON object in each
connection:

    {"order": "prepare", "record": …}   import what this record names (`srobust_import_record`)
    {"order": "state"}                  answer whether that is done; every order answers so
    {"order": "go", "set": {…}, "unset": […], "until_s": …}
                                        start the program, in this environment, up to that time (CLOCK_MONOTONIC)

A process that gets no order for `LEASE_S` ends: its starter is gone. Only `go` starts the program.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import socket
import struct
import sys
import sysconfig
import time
from typing import Any, Iterable, Sequence

from srobust_import_record import high_descriptor  # type: ignore[import-not-found]

RELEASED = "srobust-released"
LEASE_S = 30.0
_REQUEST_S = 1.0
_MOST_BYTES = 8 << 20
_PEER = struct.Struct("3i")
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/infiniband", "/dev/accel")
_OWN = ("slurm_robust",)
"""The only package outside site-packages that is imported here: importing it does not read the environment."""

LEFT_OUT = {
    "mpi4py": "starts MPI",
    "horovod": "starts MPI",
    "deepspeed": "asks for the devices, and reads the rank",
    "bitsandbytes": "asks for the devices",
    "cupy": "asks for the devices",
    "pycuda": "opens a device",
    "transformer_engine": "asks for the devices",
    "xformers": "asks for the devices",
    "flash_attn": "asks for the devices",
    "vllm": "asks for the devices, and reads the rank",
    "tensorflow": "asks for the devices",
    "wandb": "reads the rank, and starts a process",
    "ray": "starts processes",
    "torch._inductor.async_compile": "starts processes",
    "torch._inductor.codecache": "starts processes",
}
"""Modules, with all modules below them, that only the program imports → what they do when they are imported."""
APPLIED = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "VECLIB_", "NUMEXPR_", "TORCH", "PYTORCH_", "TRITON_",
    "NCCL_", "TOKENIZERS_", "HF_", "TRANSFORMERS_", "TF_", "XLA_", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING",
)  # fmt: skip
"""Variables, equal on all ranks, that libraries read when they are imported: imports run with the program's values."""
_RENDEZVOUS = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""Variables that torch.distributed reads when a process group is made, and that no module reads at its import."""
_NOT_APPLIED = (*_RENDEZVOUS, "SROBUST_", "SLURM_", "PYTHONPATH")


def _below(name: str, parents: Iterable[str]) -> bool:
    return any(name == parent or name.startswith(parent + ".") for parent in parents)


def _installed_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {os.path.realpath(paths[key]) + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(roots)


def _is_installed(origin: str, roots: tuple[str, ...]) -> bool:
    return os.path.realpath(origin).startswith(roots) or "/site-packages/" in origin or "/dist-packages/" in origin


def _opened_device() -> str:
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if link.startswith(_DEVICES):
            return link
    return ""


def _has_child() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class Imports:
    """Imports what a record names, in its order and under its environment.

    Attributes:
        refused: Why this process must not become a rank; empty if it may.
        offender: The module that is the reason; empty for none.
        count: How many modules were imported because of the record, directly or by other modules.
    """

    def __init__(self) -> None:
        self.refused = ""
        self.offender = ""
        self.count = 0
        self.seconds = 0.0
        self._roots = _installed_roots()
        self._environment = dict(os.environ)
        """The environment that the program gets: changes of the record are undone, changes by a module stay."""

    def follow(self, record: str, extra: Sequence[str], left_out: Sequence[str]) -> None:
        """Import the modules of a record; `extra` are names from the user, `left_out` names that did harm before."""
        began_s, known = time.monotonic(), len(sys.modules)
        lines = [line.split("\t") for line in record.splitlines()]
        origins = {line[1]: line[2] for line in lines if line[0] == "m" and len(line) == 3}
        skipped = (*LEFT_OUT, *left_out)
        for line in lines:
            if self.refused or not self._apply(line):
                break
            if line[0] == "m" and len(line) == 3 and self._wanted(line[1], line[2], origins, skipped):
                self._import(line[1])
        for name in extra:
            if not self.refused and name not in sys.modules and not _below(name, left_out):
                self._import(name)
        self._compare(origins)
        self._restore()
        self.count += len(sys.modules) - known
        self.seconds += time.monotonic() - began_s

    def _apply(self, line: list[str]) -> bool:
        """Apply one change of environment in the record; return False if later imports depend on the rank's values."""
        if line[0] not in ("e", "u"):
            return True
        key, value = line[1], line[2] if line[0] == "e" and len(line) == 3 else None
        if key.startswith(_NOT_APPLIED) or os.environ.get(key) == value:
            return True
        if not key.startswith(APPLIED):
            return False
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
        return True

    def _wanted(self, name: str, origin: str, origins: dict[str, str], skipped: Sequence[str]) -> bool:
        if name in sys.modules or not os.path.isabs(origin) or _below(name, skipped):
            return False
        top = name.partition(".")[0]
        if top not in _OWN and not _is_installed(origin, self._roots):
            return False
        if top in sys.modules:
            return True
        try:
            found = importlib.util.find_spec(top)
        except (ImportError, ValueError, AttributeError):
            return False
        return found is not None and str(found.origin or "") == origins.get(top, origin)

    def _import(self, name: str) -> None:
        before = dict(os.environ)
        try:
            importlib.import_module(name)
        except Exception:  # noqa: S110 (the program may expect just this, and will see it itself)
            pass
        except BaseException as error:
            self._refuse(name, f"ends the process ({type(error).__name__})")
        self._environment.update({key: value for key, value in os.environ.items() if before.get(key) != value})
        for key in set(before) - set(os.environ):
            self._environment.pop(key, None)
        device = _opened_device()
        if device:
            self._refuse(name, f"opens {device} when it is imported")
        elif _has_child():
            self._refuse(name, "starts a process when it is imported")

    def _refuse(self, name: str, why: str) -> None:
        self.offender, self.refused = name, f"{name} {why}"

    def _compare(self, origins: dict[str, str]) -> None:
        """Refuse if a module here comes from another file than in the program."""
        for name, origin in origins.items():
            spec = getattr(sys.modules.get(name), "__spec__", None)
            here = getattr(spec, "origin", None)
            if here and origin and name != "__main__" and here != origin:
                self._refuse(name, f"is {here} here and {origin} in the program")
                return

    def _restore(self) -> None:
        for key in set(os.environ) - set(self._environment):
            del os.environ[key]
        os.environ.update(self._environment)

    def release(self, changed: dict[str, str], removed: Iterable[str]) -> None:
        """Set the environment of the attempt that begins."""
        for key in removed:
            os.environ.pop(key, None)
        os.environ.update(changed)


class Output:
    """Keeps output of imports until the program starts, and then prints it, as at any other start."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, int, int]] = []
        for fd in (1, 2):
            try:
                saved = high_descriptor(os.dup(fd))
                memory = high_descriptor(os.memfd_create("srobust-warm-output", 1))
            except OSError:
                continue  # it is closed, for the program, too
            os.dup2(memory, fd)
            self._kept.append((fd, saved, memory))

    def release(self) -> None:
        """Print the output that was kept back, and let later output through."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        for fd, saved, memory in self._kept:
            os.dup2(saved, fd)
            os.close(saved)
            rest = os.pread(memory, 1 << 20, 0)
            os.close(memory)
            while rest:
                rest = rest[os.write(fd, rest) :]


class BehindOthers:
    """Gives the training priority on the processor during the imports; later waiting has to answer at once."""

    def __enter__(self) -> None:
        self._policy = os.sched_getscheduler(0)
        if self._policy == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    def __exit__(self, *_: object) -> None:
        """Set the old scheduling policy for all threads: those that libraries have started inherited ours."""
        if self._policy == os.SCHED_OTHER:
            for thread in os.listdir("/proc/self/task"):
                try:
                    os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))
                except OSError:
                    continue


class FirstToDie:
    """Has the kernel kill this process, and not the training, if memory runs out; undone at the release."""

    def __init__(self) -> None:
        self._oom_score = ""
        try:
            with open("/proc/self/oom_score_adj") as file:
                self._oom_score = file.read().strip()
            self._score("1000")
        except OSError:
            pass

    def release(self) -> None:
        """Restore the score from before, so that the kernel no longer prefers this process when memory runs out."""
        with contextlib.suppress(OSError):
            self._score(self._oom_score)

    def _score(self, text: str) -> None:
        if text:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write(text)


def _listener() -> socket.socket:
    first = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener = socket.socket(fileno=high_descriptor(first.detach()))
    listener.bind(f"\0srobust-warm-{os.getpid()}")
    listener.listen(8)
    return listener


def _request(connection: socket.socket) -> dict[str, Any] | None:
    """Return the order on a connection; None if it is not an order, or another user sent it."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    if _PEER.unpack(peer)[1] not in (0, os.getuid()):
        return None
    raw = b""
    while not raw.endswith(b"\n") and len(raw) < _MOST_BYTES:
        piece = connection.recv(1 << 16)
        if not piece:
            return None
        raw += piece
    try:
        order = json.loads(raw)
    except ValueError:
        return None
    return order if isinstance(order, dict) else None


class Gate:
    """Takes orders until one of them starts the program."""

    def __init__(self) -> None:
        self._began_s = time.clock_gettime(time.CLOCK_BOOTTIME) - _started_at_s()
        self.imports = Imports()
        if importlib.util.find_spec("usercustomize") is not None:
            self.imports.refused = "this Python has a usercustomize, which must run before all imports"
        self._listener = _listener()
        self._ready = False
        self._lease_s = time.monotonic() + LEASE_S

    def order_to_go(self) -> dict[str, Any]:
        """Serve orders until the order to start the program has come.

        Raises:
            OSError: no order came for `LEASE_S`.
        """
        while True:
            order = self._next()
            if order.get("order") == "go":
                self._listener.close()
                return order
            if order.get("order") == "prepare" and not self.imports.refused:
                self._ready = False
                with BehindOthers():
                    self.imports.follow(str(order.get("record", "")), order.get("extra", ()), order.get("left_out", ()))
                self._ready = not self.imports.refused
                self._lease_s = time.monotonic() + LEASE_S

    def _next(self) -> dict[str, Any]:
        """Return the next order that was answered; an empty order if it must not be followed."""
        self._listener.settimeout(max(0.1, self._lease_s - time.monotonic()))
        accepted, _ = self._listener.accept()
        with socket.socket(fileno=high_descriptor(accepted.detach())) as connection:
            connection.settimeout(_REQUEST_S)
            try:
                order = _request(connection)
                if order is None:
                    return {}
                self._lease_s = time.monotonic() + LEASE_S
                going = self._may_go(order)
                connection.sendall(json.dumps(self._state(went=going)).encode() + b"\n")
            except (OSError, ValueError, KeyError):
                return {}
        return order if going or order.get("order") != "go" else {}

    def _may_go(self, order: dict[str, Any]) -> bool:
        """Return whether this order starts the program: it does not if it was read too late, after another start."""
        ready = order.get("order") == "go" and self._ready and not self.imports.refused
        return ready and time.monotonic() < float(order["until_s"])

    def _state(self, *, went: bool) -> dict[str, Any]:
        return {
            "task": int(os.environ["SLURM_PROCID"]),
            "ready": self._ready,
            "went": went,
            "refused": self.imports.refused,
            "offender": self.imports.offender,
            "modules": self.imports.count,
            "seconds": round(self._began_s + self.imports.seconds, 3),
        }


def wait() -> None:
    """Import and wait; return when the program is to start, else never."""
    code = 0
    try:
        output, memory, folder = Output(), FirstToDie(), os.getcwd()
        gate = Gate()
        order = gate.order_to_go()
        code = 1  # from here on this is a rank: one that cannot begin must not look like one that has done its work
        os.chdir(folder)
        high_descriptor(os.memfd_create(RELEASED, 1))  # stays open: the agents of others know a rank by it
        gate.imports.release(order.get("set", {}), order.get("unset", ()))
        memory.release()
        output.release()
    except BaseException:  # the lease is over, or whatever else: the program must not start without an order to
        os._exit(code)


def _started_at_s() -> float:
    with open("/proc/self/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
