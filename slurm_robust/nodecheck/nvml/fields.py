"""Names what can be asked of a GPU.

`READERS` are calls of their own; `FIELD_VALUES` are numbers of NVML's field list, many of which come in one call.
Numbers without a name here are those of nvml.h. Fields 251–273 are not asked for: NVML gave these numbers other
meanings within CUDA 13.0 (known issues of its reference), so that an answer depends on the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from slurm_robust.nodecheck.nvml import fabric

Ask = Callable[..., Any]
"""Asks one GPU: NVML's function by name, then its arguments after the handle."""
Reader = Callable[[Ask, Mapping[str, Any]], Any]
"""Returns a plain JSON value; gets the values that were read before."""

MAX_LINKS = 18
"""NVLinks that boards have today; a board with more says how many."""
_ENOUGH_LINKS = 72

PER_LINK = {"replays": 161, "recoveries": 162, "crc_errors": 163}
"""Counters that newer boards have for each link (the scope of the field)."""
FIELD_VALUES: dict[str, int | tuple[int, int]] = {
    "memory_temperature": 82,
    "nvlink_speed_mbps": 90,
    "nvlink_count": 91,
    "retired_pending_single": 92,
    "retired_pending_double": 93,
    "nvlink_crc_flit": 38,
    "nvlink_crc_data": 45,
    "nvlink_replays": 52,
    "nvlink_recoveries": 59,
    "c2c_count": 170,
    "pcie_nonfatal": 179,
    "pcie_fatal": 180,
    "recovery_action": 230,
    **{f"link.{link}.{name}": (number, link) for name, number in PER_LINK.items() for link in range(MAX_LINKS)},
    **{f"c2c.{link}": (171, link) for link in range(14)},
}
LINK_COUNTERS = tuple(f"link.{link}.{name}" for link in range(MAX_LINKS) for name in PER_LINK)
C2C_STATES = tuple(f"c2c.{link}" for link in range(14))


def field_value(answer: Any) -> int | float:
    """Return a field's number, by the type that NVML says it has.

    Raises:
        ValueError: a type that nvml.h does not name.
    """
    kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    if not 0 <= answer.valueType < len(kinds):
        raise ValueError(f"value type {answer.valueType}")
    value: int | float = getattr(answer.value, kinds[answer.valueType])
    return value


def bus_name(text: str) -> str:
    """Return `00000000:9B:00.0` as the kernel writes it: `0000:9b:00`; a text of another shape is unchanged."""
    parts = text.strip().lower().split(":")
    try:
        return f"{int(parts[0], 16):04x}:{int(parts[1], 16):02x}:{int(parts[2].partition('.')[0], 16):02x}"
    except (IndexError, ValueError):
        return text.strip()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _call(name: str, *arguments: Any) -> Reader:
    """Return a reader: a call whose answer is a number."""
    return lambda ask, _: int(ask(name, *arguments))


def _words(name: str) -> Reader:
    """Return a reader: a call whose answer is a text."""
    return lambda ask, _: _text(ask(name))


def _pair(name: str) -> Reader:
    """Return a reader: a call whose answer is two numbers, now and after the next reset (or by default)."""
    return lambda ask, _: [int(part) for part in ask(name)]


def _reasons(ask: Ask, _: Mapping[str, Any]) -> int:
    """Return the reasons for the present clocks, as bits; by the older call if the driver lacks the newer."""
    try:
        return int(ask("nvmlDeviceGetCurrentClocksEventReasons"))
    except Exception as error:
        if getattr(error, "value", None) != 13:
            raise
        return int(ask("nvmlDeviceGetCurrentClocksThrottleReasons"))


_MEMORY_V2 = 0x2000028


def _memory(ask: Ask, _: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of the board's memory; `used` without the driver's reserve, if it tells that apart (r510)."""
    try:
        said = ask("nvmlDeviceGetMemoryInfo", _MEMORY_V2)
        return {"total": int(said.total), "used": int(said.used), "reserved": int(said.reserved)}
    except Exception as error:
        if getattr(error, "value", None) not in (13, 25):
            raise
        said = ask("nvmlDeviceGetMemoryInfo")
        return {"total": int(said.total), "used": int(said.used)}


def _processes(ask: Ask, _: Mapping[str, Any]) -> list[dict[str, int]]:
    """Processes with a CUDA context on this GPU, of this PID namespace."""
    found = ask("nvmlDeviceGetComputeRunningProcesses")
    return [{"pid": int(one.pid), "used": int(one.usedGpuMemory or 0)} for one in found[:200]]


def _others(ask: Ask, _: Mapping[str, Any]) -> int:
    """Processes that draw on this GPU, or compute through MPS: NVML lists these apart. 0 if it cannot tell."""
    found = 0
    for name in ("nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"):
        try:
            found += len(ask(name))
        except Exception as error:
            if getattr(error, "value", None) not in (3, 13, None):
                raise
    return found


def _rows(ask: Ask, _: Mapping[str, Any]) -> dict[str, int]:
    """Remapped rows since the board was made, by cause, and the two flags."""
    corrected, uncorrected, pending, failed = ask("nvmlDeviceGetRemappedRows")
    return {"corrected": corrected, "uncorrected": uncorrected, "pending": pending, "failed": failed}


def _row_histogram(ask: Ask, _: Mapping[str, Any]) -> dict[str, int]:
    """Memory banks by how many spare rows they have left."""
    said = ask("nvmlDeviceGetRowRemapperHistogram")
    return {name: int(getattr(said, name)) for name in ("max", "high", "partial", "low", "none")}


def _retired(cause: int) -> Reader:
    return lambda ask, _: len(ask("nvmlDeviceGetRetiredPages", cause))


def _sram_over(ask: Ask, _: Mapping[str, Any]) -> int:
    import pynvml  # noqa: PLC0415 (loaded already, by the session)

    said = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    ask("nvmlDeviceGetSramEccErrorStatus", pynvml.byref(said))
    return int(said.bThresholdExceeded)


def _nvlink_states(ask: Ask, values: Mapping[str, Any]) -> list[int | None]:
    """Return by link 1 for up, 0 for down, None for not there; empty if the board has no NVLink."""
    states: list[int | None] = []
    for link in range(min(int(values.get("nvlink_count", MAX_LINKS)), _ENOUGH_LINKS)):
        try:
            states.append(int(ask("nvmlDeviceGetNvLinkState", link)))
        except Exception as error:
            code = getattr(error, "value", None)
            if code == 2:  # there are no more
                break
            if code != 3:
                raise
            states.append(None)
    return states if any(state is not None for state in states) else []


_IDLE = 1
_BUSY_PSTATE = 2


def _link_now(ask: Ask) -> dict[str, int]:
    now = {
        "generation": int(ask("nvmlDeviceGetCurrPcieLinkGeneration")),
        "width": int(ask("nvmlDeviceGetCurrPcieLinkWidth")),
    }
    now["pstate"] = int(ask("nvmlDeviceGetPerformanceState"))
    now["busy"] = int(now["pstate"] <= _BUSY_PSTATE and not _reasons(ask, {}) & _IDLE)
    return now


def _pcie(ask: Ask, _: Mapping[str, Any]) -> dict[str, int]:
    """Return the PCIe link now, and what board and slot can do.

    Idle boards save power by a slower link, and need a moment to leave it: what looks slow on a busy board is looked at
    again, and the best of three looks counts.
    """
    most = {
        "max_generation": int(ask("nvmlDeviceGetMaxPcieLinkGeneration")),
        "max_width": int(ask("nvmlDeviceGetMaxPcieLinkWidth")),
    }
    best = _link_now(ask)
    for _again in range(2):
        if not best["busy"] or (best["generation"], best["width"]) >= (most["max_generation"], most["max_width"]):
            break
        time.sleep(0.05)
        now = _link_now(ask)
        best = {
            "generation": max(best["generation"], now["generation"]),
            "width": max(best["width"], now["width"]),
            "pstate": max(best["pstate"], now["pstate"]),
            "busy": min(best["busy"], now["busy"]),
        }
    return {**most, **best}


def _validate(ask: Ask, _: Mapping[str, Any]) -> int:
    ask("nvmlDeviceValidateInforom")
    return 1


READERS: dict[str, Reader] = {
    "bus": lambda ask, _: bus_name(_text(ask("nvmlDeviceGetPciInfo").busId)),
    "minor": _call("nvmlDeviceGetMinorNumber"),
    "uuid": _words("nvmlDeviceGetUUID"),
    "model": _words("nvmlDeviceGetName"),
    "vbios": _words("nvmlDeviceGetVbiosVersion"),
    "inforom_image": _words("nvmlDeviceGetInforomImageVersion"),
    "gsp_version": _words("nvmlDeviceGetGspFirmwareVersion"),
    "gsp_mode": _pair("nvmlDeviceGetGspFirmwareMode"),
    "persistence": _call("nvmlDeviceGetPersistenceMode"),
    "compute_mode": _call("nvmlDeviceGetComputeMode"),
    "mig_mode": _pair("nvmlDeviceGetMigMode"),
    "ecc_mode": _pair("nvmlDeviceGetEccMode"),
    "pstate": _call("nvmlDeviceGetPerformanceState"),
    "clock_reasons": _reasons,
    "sm_clock_mhz": _call("nvmlDeviceGetClockInfo", 1),
    "sm_max_mhz": _call("nvmlDeviceGetMaxClockInfo", 1),
    "memory_max_mhz": _call("nvmlDeviceGetMaxClockInfo", 2),
    "sm_application_mhz": _call("nvmlDeviceGetApplicationsClock", 1),
    "sm_default_mhz": _call("nvmlDeviceGetDefaultApplicationsClock", 1),
    "memory_application_mhz": _call("nvmlDeviceGetApplicationsClock", 2),
    "memory_default_mhz": _call("nvmlDeviceGetDefaultApplicationsClock", 2),
    "temperature": _call("nvmlDeviceGetTemperature", 0),
    "temperature_shutdown": _call("nvmlDeviceGetTemperatureThreshold", 0),
    "temperature_slowdown": _call("nvmlDeviceGetTemperatureThreshold", 1),
    "temperature_memory_max": _call("nvmlDeviceGetTemperatureThreshold", 2),
    "temperature_margin": _call("nvmlDeviceGetMarginTemperature"),
    "power_limit_mw": _call("nvmlDeviceGetPowerManagementLimit"),
    "power_enforced_mw": _call("nvmlDeviceGetEnforcedPowerLimit"),
    "power_default_mw": _call("nvmlDeviceGetPowerManagementDefaultLimit"),
    "memory": _memory,
    "processes": _processes,
    "other_processes": _others,
    "ecc_volatile_corrected": _call("nvmlDeviceGetTotalEccErrors", 0, 0),
    "ecc_volatile_uncorrected": _call("nvmlDeviceGetTotalEccErrors", 1, 0),
    "ecc_aggregate_corrected": _call("nvmlDeviceGetTotalEccErrors", 0, 1),
    "ecc_aggregate_uncorrected": _call("nvmlDeviceGetTotalEccErrors", 1, 1),
    "ecc_sram_uncorrected": _call("nvmlDeviceGetMemoryErrorCounter", 1, 0, 7),
    "ecc_sram_over": _sram_over,
    "rows": _rows,
    "row_histogram": _row_histogram,
    "repair": _pair("nvmlDeviceGetRepairStatus"),
    "retired_single": _retired(0),
    "retired_double": _retired(1),
    "retired_pending": _call("nvmlDeviceGetRetiredPagesPendingStatus"),
    "nvlink_states": _nvlink_states,
    "pcie": _pcie,
    "pcie_replays": _call("nvmlDeviceGetPcieReplayCounter"),
    "inforom_valid": _validate,
    "fabric": fabric.read,
}
