"""Has the parts that judges of NVML's facts share: is there anything to judge, and how do faults become one finding?"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from slurm_robust.nodecheck.engine.faults import Fault
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Facts, Options

__all__ = [
    "BLIND",
    "LOST_REMEDY",
    "LOST_WORDS",
    "Fault",
    "conclude_gpus",
    "has_mig",
    "label",
    "lost_gpus",
    "needs_gpus",
    "outliers",
    "reported",
    "unanswered",
    "unreported",
]

Judge = Callable[[Facts, Options], Finding]

_NOT_HERE = frozenset({"not_supported", "invalid_argument"})
"""The board has no such thing; fields that an older driver does not know come as `invalid_argument`."""
_MAX_TEXTS = 3
BLIND = frozenset({"nvml_no_binding", "nvml_no_library", "nvml_untrusted_library"})
"""Reasons of findings that say that this installation cannot see the GPUs, independent of the GPUs' state."""
LOST_WORDS = {
    "gpu_is_lost": "lost (fallen off the bus, or it does not answer)",
    "reset_required": "a reset is required",
    "insufficient_power": "power cables are not attached",
    "irq_issue": "its interrupts do not arrive",
}
LOST_REMEDY = "drain; read `dmesg | grep -e NVRM -e Xid`; reset the GPU or power-cycle; repair if it comes back"


def label(gpu: Mapping[str, Any]) -> str:
    """Return a GPU's name in sentences, `GPU 3 (0000:9b:00)`."""
    return f"GPU {gpu['index']} ({gpu['bus']})" if gpu["bus"] else f"GPU {gpu['index']}"


def unanswered(facts: Mapping[str, Any]) -> Finding | None:
    """Return a finding if NVML did not answer, or a GPU was lost meanwhile; None if there are GPUs to judge."""
    if facts["state"] == "no_driver":
        return Finding(Status.SKIP, "no_driver", "no NVIDIA driver is loaded")
    if facts["state"] == "saved_tree":
        return Finding(Status.SKIP, "saved_tree", "NVML knows only this machine, not a saved tree")
    if facts["state"]:
        install = f"{sys.executable} -m pip install nvidia-ml-py"
        remedy = install if facts["state"] == "no_binding" else "run `nvidia-smi`"
        return Finding(Status.UNKNOWN, f"nvml_{facts['state']}", f"NVML cannot be used: {facts['detail']}", remedy)
    if facts["hung"]:
        sentence = f"NVML cannot be used: {facts['hung']['call']} did not return"
        return Finding(
            Status.UNKNOWN, "nvml_hung", sentence, "see the finding of `gpu_driver`", {"hung": facts["hung"]}
        )
    if not facts["gpus"]:
        return Finding(Status.SKIP, "no_gpu", "the driver has no GPU")
    lost = lost_gpus(facts, "lost_meanwhile")
    return conclude_gpus(lost, ("", "")) if lost else None


def lost_gpus(facts: Mapping[str, Any], which: str = "lost") -> list[Fault]:
    """Return a fault for each GPU that cannot be worked with; `which` may be `lost_meanwhile`."""
    lost = [gpu for gpu in facts["gpus"] if gpu.get(which)]
    return [Fault.fail("gpu_lost", LOST_WORDS[gpu["lost"]], LOST_REMEDY, gpu) for gpu in lost]


def reported(facts: Mapping[str, Any], name: str) -> list[tuple[Facts, Any]]:
    """Return (GPU, value) of every GPU that reports this field."""
    return [(gpu, gpu["values"][name]) for gpu in facts["gpus"] if name in gpu["values"]]


def has_mig(gpu: Facts) -> bool:
    """True for a GPU that is cut into MIG instances now."""
    return bool(gpu["values"].get("mig_mode", [0])[0])


def unreported(facts: Mapping[str, Any], name: str, what: str, *, needed: bool = True) -> Finding | None:
    """Return a finding if no GPU reports `name`: skip if the boards have no such thing, unknown if they should.

    `what` is the field's name for people ("ECC counters"). `needed` is False for a field that only newer drivers
    report: without it the check is skipped.
    """
    if reported(facts, name):
        return None
    errors = {gpu["errors"][name] for gpu in facts["gpus"] if name in gpu["errors"] and not gpu["lost"]}
    if errors <= _NOT_HERE or (errors == {"function_not_found"} and not needed):
        return Finding(Status.SKIP, "not_supported", f"the GPUs or their driver have no {what}")
    if errors <= _NOT_HERE | {"function_not_found"}:
        version = facts["system"].get("driver", "?")
        sentence = f"the driver ({version}) is too old to report {what}"
        return Finding(
            Status.UNKNOWN, "old_driver", sentence, "update the driver, or name this check in nodecheck.disable"
        )
    names = ", ".join(sorted(errors))
    remedy = "run it as root" if "no_permission" in errors else "look at the kernel log: `dmesg | grep NVRM`"
    return Finding(Status.UNKNOWN, "not_told", f"NVML does not report {what}: {names}", remedy, {"errors": names})


def needs_gpus(name: str = "", what: str = "", *, needed: bool = True) -> Callable[[Judge], Judge]:
    """Decorate a judge: first come the findings of `unanswered` and, if a field is named, of `unreported`."""

    def decorate(judge: Judge) -> Judge:
        @functools.wraps(judge)
        def judged(facts: Facts, options: Options) -> Finding:
            nothing = unanswered(facts) or (unreported(facts, name, what, needed=needed) if name else None)
            return nothing or judge(facts, options)

        return judged

    return decorate


def conclude_gpus(
    faults: Iterable[Fault], passed: tuple[str, str], evidence: Mapping[str, Any] | None = None
) -> Finding:
    """Return one finding: the worst faults, with equal texts put together, or that all is well.

    Args:
        faults: In the order of importance; ` on GPU …` is added to their sentences.
        passed: Reason and sentence if there are none.
        evidence: The evidence of the finding; the GPUs with faults are added.
    """
    found = list(faults)
    if not found:
        return Finding(Status.PASS, *passed, evidence=dict(evidence or {}))
    status = Status.FAIL if any(fault.status is Status.FAIL for fault in found) else Status.WARN
    worst = [fault for fault in found if fault.status is status]
    groups: dict[str, list[Fault]] = {}
    for fault in worst:
        groups.setdefault(fault.sentence, []).append(fault)
    parts = [text + _where([fault.gpu for fault in group]) for text, group in groups.items()]
    sentence = "; ".join(parts[:_MAX_TEXTS]) + (
        f"; and {len(parts) - _MAX_TEXTS} more" if len(parts) > _MAX_TEXTS else ""
    )
    hit = [
        {"bus": fault.gpu["bus"], "uuid": fault.gpu["uuid"], "minor": fault.gpu["minor"], "what": fault.sentence}
        for fault in found
        if fault.gpu is not None
    ]
    return Finding(status, worst[0].reason, sentence, worst[0].remedy, {"gpus": hit, **(evidence or {})})


def _where(gpus: Sequence[Mapping[str, Any] | None]) -> str:
    named = [gpu for gpu in gpus if gpu is not None]
    if not named:
        return ""
    if len(named) == 1:
        return f" on {label(named[0])}"
    return f" on GPUs {', '.join(str(gpu['index']) for gpu in named)}"


def outliers(readings: Sequence[tuple[Facts, Any]]) -> list[tuple[Facts, Any]]:
    """Return the readings that differ from most GPUs of their model; empty if no value has a clear majority."""
    by_model: dict[str, list[tuple[Facts, Any]]] = {}
    for gpu, value in readings:
        by_model.setdefault(gpu["model"], []).append((gpu, value))
    odd = []
    for sisters in by_model.values():
        values = [value for _, value in sisters]
        common = max(values, key=values.count)
        if values.count(common) * 2 > len(values):
            odd += [(gpu, value) for gpu, value in sisters if value != common]
    return odd
