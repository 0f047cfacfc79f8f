"""Receives NVML's events as they come (source `nvml`), and runs its checks every ten seconds, in one child.

If the library or the board has no events, only the checks remain. The child ends after an hour, so that the next child
meets GPUs that came or went, and a driver of another version.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm_robust.nodecheck.catalogue import xids
from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.registry import Check
from slurm_robust.nodecheck.nvml import library, session
from slurm_robust.nodecheck.sources import small_files
from slurm_robust.nodecheck.sources.kmsg import KernelLog
from slurm_robust.nodewatch.child import Body, Message, Send, parent_gone
from slurm_robust.nodewatch.gpu_numbers import GpuNumbers, driver_numbers
from slurm_robust.nodewatch.kernel_lines import KernelLines
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.polls import run_here
from slurm_robust.nodewatch.ring import Seen
from slurm_robust.nodewatch.verdicts import Verdicts

CHECKS = (
    *("gpu_driver", "gpu_recovery", "gpu_ecc", "gpu_rows", "gpu_pages"),
    *("gpu_nvlink", "gpu_fabric", "gpu_temperature", "gpu_throttle"),
)
EVERY_S = 10.0
SILENT_S = 60.0
_LIFE_S = 3600.0
_WAIT_MS = 1000
# nvml.h: nvmlEventType*
_ECC_DOUBLE, _CLOCK, _XID, _POWER_SOURCE = 0x2, 0x10, 0x8, 0x80
_WANTED = _ECC_DOUBLE | _XID | _POWER_SOURCE | _CLOCK
_SOONEST_S = 2.0
"""An event that a check has to judge has it run at once, and not more often than this."""


def body(checks: Sequence[Check], context: Context, chosen: Mapping[str, Mapping[str, Any]]) -> Body:
    """Return the work of the child."""

    def run(send: Send) -> None:
        parent = os.getppid()
        begin_s = time.monotonic()
        there = _driver(context)
        # Sent before NVML is asked: if NVML hangs, no more is known.
        numbers, guessed = driver_numbers(context.root)
        send({"results": [], "gpus": numbers, "guessed": guessed})
        wait: Callable[[float], tuple[int, str, int] | None] | None = None
        while time.monotonic() - begin_s < _LIFE_S and _driver(context) == there and not parent_gone(parent):
            look_s = time.monotonic()
            fresh = replace(context, shared={})
            results = [run_here(check, fresh, chosen) for check in checks]
            asked = session.of(fresh)
            send({"results": results, "gpus": {gpu["bus"]: gpu["minor"] for gpu in asked.gpus}})
            if asked.hung:
                # Whatever is asked next in this process would hang, too; its check says when a hang is more than slow.
                if _still_hangs(chosen):
                    driver = [run_here(check, fresh, chosen) for check in checks if check.name == "gpu_driver"]
                    send({"results": driver, "gpus": {}})
                return
            if wait is None and not asked.state:
                wait = _events([gpu["index"] for gpu in asked.gpus])
            _listen(send, wait, look_s)

    return run


def _still_hangs(chosen: Mapping[str, Mapping[str, Any]]) -> bool:
    """Wait as long as a hang may last; True if the call has not come back by then."""
    end_s = time.monotonic() + registry.get("gpu_driver").settings(chosen.get("gpu_driver", {}))["hung_s"]
    while threading.active_count() > 1:
        if time.monotonic() >= end_s:
            return True
        time.sleep(0.1)
    return False


def _driver(context: Context) -> tuple[str, tuple[str, ...]]:
    """Return the driver's version and GPUs, which change if the driver is loaded anew, or GPUs come or go."""
    root = context.path("/proc/driver/nvidia")
    return small_files.read_text(root / "version", 256), tuple(small_files.names(root / "gpus"))


def _listen(send: Send, wait: Callable[[float], tuple[int, str, int] | None] | None, look_s: float) -> None:
    """Send events until the checks are due, or an event wants the checks sooner."""
    end_s = look_s + EVERY_S
    while (left_s := end_s - time.monotonic()) > 0:
        event = wait(left_s) if wait is not None else None
        if wait is None:
            time.sleep(left_s)
        if event is None:
            continue
        kind, bus, data = event
        if kind == _XID and bus:
            send({"xid": data, "bus": bus})
        end_s = min(end_s, max(look_s + _SOONEST_S, time.monotonic()))


def _events(indexes: Sequence[int]) -> Callable[[float], tuple[int, str, int] | None] | None:
    """Return a function that waits some seconds for the next event: (type, PCI address, data); None without events."""
    nvml = library.binding()
    try:
        events = nvml.nvmlEventSetCreate()
        registered = 0
        for index in indexes:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            kinds = nvml.nvmlDeviceGetSupportedEventTypes(handle) & _WANTED
            if kinds:
                nvml.nvmlDeviceRegisterEvents(handle, kinds, events)
                registered += 1
    except Exception:  # noqa: BLE001 (after any error of the library, only the checks remain)
        return None

    def wait(seconds: float) -> tuple[int, str, int] | None:
        try:
            event = nvml.nvmlEventSetWait_v2(events, min(_WAIT_MS * 10, max(1, int(seconds * 1000))))
            address = nvml.nvmlDeviceGetPciInfo(event.device).busId
        except nvml.NVMLError as error:
            if getattr(error, "value", 0) != nvml.NVML_ERROR_TIMEOUT:
                time.sleep(min(1.0, max(0.0, seconds)))  # a lost GPU ends each wait at once
            return None
        bus = address.decode("ascii", "replace") if isinstance(address, bytes) else str(address)
        return int(event.eventType), bus, int(event.eventData)

    return wait if registered else None


def findings(verdicts: Verdicts, lines: KernelLines, gpus: GpuNumbers, message: Message, moment: Moment) -> list[Seen]:
    """Return the findings in a message of the child."""
    if message.get("xid") in xids.SAID_IN_WORDS:
        return []
    if "xid" in message:
        # Said as the kernel log says it, so that the same check judges it.
        text = f"4,0,{int(moment.uptime_s * 1e6)},-;NVRM: Xid (PCI:{message['bus']}): {message['xid']}, \0"
        return lines.judge(KernelLog(text.encode()), moment, source="nvml")
    numbers = {bus: index for bus, index in message["gpus"].items() if isinstance(index, int)}
    gpus.learn(numbers, guessed=message.get("guessed", False))
    return verdicts.changes("nvml", message["results"], moment)
