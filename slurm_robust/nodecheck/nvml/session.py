"""Asks NVML by a thread of its own, so that a call that never comes back is noticed and named.

One session serves all checks of the lane `nvml`: it is opened by the first that asks, and what one has read the next
does not ask again. Nothing here raises: an error of a call is kept by its name beside the values.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.nvml import library
from slurm_robust.nodecheck.nvml.fields import FIELD_VALUES, READERS, Ask, field_value
from slurm_robust.nodecheck.sources import small_files

_SHARE = 0.8
"""The share of a check's deadline that the calls may take; the rest is for telling the result."""

ERRORS = {
    1: "uninitialized",
    2: "invalid_argument",
    3: "not_supported",
    4: "no_permission",
    6: "not_found",
    7: "insufficient_size",
    8: "insufficient_power",
    9: "driver_not_loaded",
    10: "timeout",
    11: "irq_issue",
    12: "library_not_found",
    13: "function_not_found",
    14: "corrupted_inforom",
    15: "gpu_is_lost",
    16: "reset_required",
    17: "operating_system",
    18: "lib_rm_version_mismatch",
    19: "in_use",
    20: "memory",
    21: "no_data",
    25: "argument_version_mismatch",
    26: "deprecated",
    27: "not_ready",
    28: "gpu_not_found",
    29: "invalid_state",
    999: "unknown",
}
"""NVML's errors by number, as nvml.h names them."""
LOST = frozenset({"gpu_is_lost", "reset_required", "insufficient_power", "irq_issue"})
"""Errors that say that the GPU itself cannot be worked with."""
_MAX_GPUS = 64


class NvmlSession:
    """NVML as one process sees it.

    Attributes:
        state: Empty if it answers; else why there is nothing to ask: `no_driver`, `saved_tree`, `no_binding`,
            `no_library`, `untrusted_library`, or the name of NVML's error.
        detail: The state in words.
        hung: The call that did not come back, empty if all did: call, gpu (index or None), after_s, task_state.
        gpus: One record a GPU, in NVML's order: index, bus, minor, uuid, model, values, errors, lost.
        system: The versions on the node: driver, cuda.
        told_lost: Indices of the GPUs that were lost when the session was opened or when `gpu_driver` looked: that
            check tells of them. Whichever check finds another one lost later has to tell of it.
    """

    def __init__(self) -> None:
        self.state = ""
        self.detail = ""
        self.hung: dict[str, Any] = {}
        self.gpus: list[dict[str, Any]] = []
        self.system: dict[str, Any] = {}
        self.told_lost: frozenset[int] = frozenset()
        self._nvml: Any = None
        self._handles: dict[int, Any] = {}
        self._call: tuple[str, int | None] = ("", None)
        self._thread_id = 0

    def open(self, path: str, limit_s: float) -> None:
        """Load the library and find the GPUs."""
        try:
            self._nvml = library.binding()
        except ImportError:
            self.state, self.detail = "no_binding", f"the package nvidia-ml-py is not installed for {sys.executable}"
            return
        try:
            self._nvml.nvmlLib = library.load(path)
        except PermissionError as error:
            self.state, self.detail = "untrusted_library", str(error)
            return
        except OSError as error:
            self.state, self.detail = "no_library", f"libnvidia-ml.so.1 cannot be loaded: {error}"
            return
        self._run(self._find, limit_s)
        self.tell_lost()

    def tell_lost(self) -> None:
        """Take the GPUs that are lost by now as told of."""
        self.told_lost = frozenset(gpu["index"] for gpu in self.gpus if gpu["lost"])

    def read(self, names: Sequence[str], limit_s: float) -> None:
        """Read these fields of every GPU, except fields that were read before."""
        if not self.state and not self.hung:
            self._run(lambda: self._read(names), limit_s)

    def unknown(self, uuids: Sequence[str], limit_s: float) -> list[str]:
        """Return those of these GPUs and instances that the driver does not have."""
        missing: list[str] = []

        def ask() -> None:
            for uuid in uuids:
                try:
                    self._asker(None)("nvmlDeviceGetHandleByUUID", uuid)
                except Exception as error:  # noqa: BLE001 (as in `_find`)
                    if self._error(error) == "not_found":
                        missing.append(uuid)

        if uuids and not self.state and not self.hung:
            self._run(ask, limit_s)
        return missing

    def change(self, index: int, name: str, *arguments: int, limit_s: float) -> str:
        """Call one function that sets something on a GPU; return NVML's error by name, empty if it did so."""
        said = ["timeout"]

        def ask() -> None:
            try:
                self._asker(index)(name, *arguments)
                said[0] = ""
            except Exception as error:  # noqa: BLE001 (as in `_find`)
                said[0] = self._error(error)

        if not self.state and not self.hung:
            self._run(ask, limit_s)
        return said[0]

    def close(self, limit_s: float) -> None:
        """Let go of the GPUs; nothing may be asked afterwards."""

        def ask() -> None:
            with contextlib.suppress(Exception):
                self._asker(None)("nvmlShutdown")

        if not self.state and not self.hung:
            self._run(ask, limit_s)
        self.state = self.state or "uninitialized"

    def forget(self, names: Sequence[str]) -> None:
        """Let these fields be read anew, except where nothing comes back any more."""
        for gpu in [] if self.hung else self.gpus:
            for name in names:
                gpu["values"].pop(name, None)
                gpu["errors"].pop(name, None)

    def _run(self, work: Callable[[], None], limit_s: float) -> None:
        import threading  # noqa: PLC0415 (only a node with GPUs pays for it)

        def body() -> None:
            self._thread_id = threading.get_native_id()
            work()

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        thread.join(limit_s)
        if thread.is_alive():
            call, gpu = self._call
            state = task_state(small_files.read_text(Path(f"/proc/self/task/{self._thread_id}/stat"), 4096))
            self.hung = {"call": call, "gpu": gpu, "after_s": round(limit_s, 1), "task_state": state}

    def _asker(self, index: int | None) -> Ask:
        """Return a function that asks one GPU (None: the node), and notes the present call."""

        def ask(name: str, *arguments: Any) -> Any:
            self._call = (name, index)
            function = getattr(self._nvml, name, None)
            if function is None:  # an older binding
                raise self._nvml.NVMLError(13)
            return function(*arguments) if index is None else function(self._handles[index], *arguments)

        return ask

    def _error(self, error: Exception) -> str:
        code = getattr(error, "value", None)
        if isinstance(code, int):
            return ERRORS.get(code, f"error_{code}")
        if isinstance(error, (AttributeError, TypeError)):
            return "function_not_found"  # an older binding has it not, or wants other arguments
        return "unreadable"  # what came back is no text, or no number that a structure can hold

    def _find(self) -> None:
        ask = self._asker(None)
        try:
            ask("nvmlInit")
            count = min(int(ask("nvmlDeviceGetCount")), _MAX_GPUS)
        except Exception as error:  # noqa: BLE001 (every error of the library is told; the check goes on)
            self.state = self._error(error)
            self.detail = f"{self._call[0]} says: {self.state}"
            return
        for name, call in (("driver", "nvmlSystemGetDriverVersion"), ("cuda", "nvmlSystemGetCudaDriverVersion")):
            try:
                self.system[name] = ask(call)
            except Exception as error:  # noqa: BLE001 (the same)
                self.system[f"{name}_error"] = self._error(error)
        for index in range(count):
            gpu: dict[str, Any] = {"index": index, "bus": "", "minor": None, "uuid": "", "model": "", "lost": ""}
            gpu.update(values={}, errors={})
            self.gpus.append(gpu)
            try:
                self._call = ("nvmlDeviceGetHandleByIndex", index)
                self._handles[index] = self._nvml.nvmlDeviceGetHandleByIndex(index)
            except Exception as error:  # noqa: BLE001 (the same)
                self._note(gpu, "handle", self._error(error))
                continue
            self._read_one(gpu, ("bus", "minor", "uuid", "model"))
            for name in ("bus", "minor", "uuid", "model"):
                gpu[name] = gpu["values"].pop(name, gpu[name])

    def _read(self, names: Sequence[str]) -> None:
        for gpu in self.gpus:
            if gpu["index"] in self._handles:
                self._read_one(gpu, names)

    def _read_one(self, gpu: dict[str, Any], names: Sequence[str]) -> None:
        values, errors = gpu["values"], gpu["errors"]
        wanted = [name for name in names if name not in values and name not in errors]
        ask = self._asker(gpu["index"])
        batch = [name for name in wanted if name in FIELD_VALUES]
        if batch:
            self._read_batch(gpu, ask, batch)
        for name in wanted:
            if name in FIELD_VALUES:
                continue
            try:
                values[name] = READERS[name](ask, values)
            except Exception as error:  # noqa: BLE001 (the same)
                self._note(gpu, name, self._error(error))

    def _read_batch(self, gpu: dict[str, Any], ask: Ask, names: Sequence[str]) -> None:
        try:
            answers = ask("nvmlDeviceGetFieldValues", [FIELD_VALUES[name] for name in names])
        except Exception as error:  # noqa: BLE001 (the same)
            for name in names:
                self._note(gpu, name, self._error(error))
            return
        for name, answer in zip(names, answers, strict=True):
            if answer.nvmlReturn != 0:
                self._note(gpu, name, ERRORS.get(answer.nvmlReturn, f"error_{answer.nvmlReturn}"))
                continue
            try:
                gpu["values"][name] = field_value(answer)
            except ValueError:
                self._note(gpu, name, "unreadable")

    def _note(self, gpu: dict[str, Any], name: str, error: str) -> None:
        gpu["errors"][name] = error
        if error in LOST and not gpu["lost"]:
            gpu["lost"] = error


def of(context: Context) -> NvmlSession:
    """Return the lane's session; opened by the first probe that asks."""
    return context.once("nvml", lambda: _opened(context))


def limit_s(context: Context) -> float:
    """Return how long a check's calls may take."""
    return context.deadline_s * _SHARE


def _opened(context: Context) -> NvmlSession:
    session = NvmlSession()
    if not context.real_root and (not context.nvml_library or context.cache_dir is None):
        session.state, session.detail = "saved_tree", "a saved tree is looked at: NVML is of this machine"
    elif not context.nvml_library and not os.path.exists("/proc/driver/nvidia/version"):  # noqa: PTH110 (no Path: time)
        session.state, session.detail = "no_driver", "no NVIDIA driver is loaded"
    else:
        session.open(context.nvml_library, limit_s(context))
    return session


def task_state(stat: str) -> str:
    """Return the state letter of a /proc/*/stat (`D`: it sleeps in the kernel, unkillable); empty if there is none."""
    fields = stat.rpartition(")")[2].split()
    return fields[0] if fields and len(fields[0]) == 1 else ""
