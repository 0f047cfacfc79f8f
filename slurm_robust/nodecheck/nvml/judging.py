"""What the judges of NVML's facts share: whether there is anything to judge, and how complaints become one finding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_robust.nodecheck.engine.finding import Finding, Status

_NOT_HERE = frozenset({"not_supported", "invalid_argument"})
"""The board has no such thing; fields that an older driver does not know come as `invalid_argument`."""
_TOLD = 3


@dataclass(frozen=True)
class Complaint:
    """Something wrong with one GPU, or (gpu None) with all of them.

    Attributes:
        status: warn or fail.
        reason: As in a finding.
        words: What is wrong, to be followed by ` on GPU …`.
        remedy: As in a finding.
        gpu: The GPU's record.
    """

    status: Status
    reason: str
    words: str
    remedy: str
    gpu: Mapping[str, Any] | None = None


def label(gpu: Mapping[str, Any]) -> str:
    """`GPU 3 (0000:9b:00)`."""
    return f"GPU {gpu['index']} ({gpu['bus']})" if gpu["bus"] else f"GPU {gpu['index']}"


def silent(facts: Mapping[str, Any]) -> Finding | None:
    """The finding where NVML told nothing; None where there are GPUs to judge."""
    if facts["state"] == "no_driver":
        return Finding(Status.SKIP, "no_driver", "no NVIDIA driver is loaded")
    if facts["state"] == "saved_tree":
        return Finding(Status.SKIP, "saved_tree", "a saved tree is looked at: NVML is of this machine")
    if facts["state"]:
        remedy = "pip install 'slurm-robust[gpu]'" if facts["state"] == "no_binding" else "run `nvidia-smi`"
        return Finding(Status.UNKNOWN, f"nvml_{facts['state']}", f"the GPUs cannot be asked: {facts['detail']}", remedy)
    if facts["hung"]:
        sentence = f"the GPUs cannot be asked: {facts['hung']['call']} did not come back"
        return Finding(Status.UNKNOWN, "nvml_hung", sentence, "see what `gpu_driver` says", {"hung": facts["hung"]})
    if not facts["gpus"]:
        return Finding(Status.SKIP, "no_gpu", "the driver has no GPU")
    return None


def answered(facts: Mapping[str, Any], name: str) -> list[tuple[Mapping[str, Any], Any]]:
    """(GPU, value) of every GPU that told it."""
    return [(gpu, gpu["values"][name]) for gpu in facts["gpus"] if name in gpu["values"]]


def untold(facts: Mapping[str, Any], name: str, what: str, *, needed: bool = True) -> Finding | None:
    """The finding where no GPU told `name`: skip where the boards have none, unknown where they should tell.

    Args:
        facts: Of the probe.
        name: The field without which there is nothing to judge.
        what: The same in words ("ECC counters").
        needed: False for what only newer drivers have: then its lack is no more than a skip.
    """
    if answered(facts, name):
        return None
    errors = {gpu["errors"][name] for gpu in facts["gpus"] if name in gpu["errors"] and not gpu["lost"]}
    if errors <= _NOT_HERE or (errors == {"function_not_found"} and not needed):
        return Finding(Status.SKIP, "not_supported", f"the GPUs or their driver have no {what}")
    if errors <= _NOT_HERE | {"function_not_found"}:
        version = facts["system"].get("driver", "?")
        sentence = f"the driver ({version}) is too old to tell {what}"
        return Finding(
            Status.UNKNOWN, "old_driver", sentence, "update the driver, or name this check in nodecheck.disable"
        )
    said = ", ".join(sorted(errors))
    remedy = "run it as root" if "no_permission" in errors else "look at the kernel log: `dmesg | grep NVRM`"
    return Finding(Status.UNKNOWN, "not_told", f"NVML does not tell {what}: {said}", remedy, {"errors": said})


def settle(
    complaints: Iterable[Complaint], passed: tuple[str, str], evidence: Mapping[str, Any] | None = None
) -> Finding:
    """One finding: the worst complaints by their words, or that all is well.

    Args:
        complaints: In the order of importance.
        passed: Reason and sentence where there are none.
        evidence: Of the finding; the GPUs complained of are added.
    """
    said = list(complaints)
    if not said:
        return Finding(Status.PASS, *passed, evidence=dict(evidence or {}))
    status = Status.FAIL if any(one.status is Status.FAIL for one in said) else Status.WARN
    worst = [one for one in said if one.status is status]
    groups: dict[str, list[Complaint]] = {}
    for one in worst:
        groups.setdefault(one.words, []).append(one)
    parts = [words + _where([one.gpu for one in group]) for words, group in groups.items()]
    sentence = "; ".join(parts[:_TOLD]) + (f"; and {len(parts) - _TOLD} more" if len(parts) > _TOLD else "")
    hit = [
        {"bus": one.gpu["bus"], "uuid": one.gpu["uuid"], "minor": one.gpu["minor"], "what": one.words}
        for one in said
        if one.gpu is not None
    ]
    return Finding(status, worst[0].reason, sentence, worst[0].remedy, {"gpus": hit, **(evidence or {})})


def _where(gpus: Sequence[Mapping[str, Any] | None]) -> str:
    named = [gpu for gpu in gpus if gpu is not None]
    if not named:
        return ""
    if len(named) == 1:
        return f" on {label(named[0])}"
    return f" on GPUs {', '.join(str(gpu['index']) for gpu in named)}"


def odd_ones(told: Sequence[tuple[Mapping[str, Any], Any]]) -> list[tuple[Mapping[str, Any], Any]]:
    """Those that differ from what most of their model say; none where no value has a clear majority."""
    by_model: dict[str, list[tuple[Mapping[str, Any], Any]]] = {}
    for gpu, value in told:
        by_model.setdefault(gpu["model"], []).append((gpu, value))
    odd = []
    for sisters in by_model.values():
        values = [value for _, value in sisters]
        common = max(values, key=values.count)
        if values.count(common) * 2 > len(values):
            odd += [(gpu, value) for gpu, value in sisters if value != common]
    return odd
