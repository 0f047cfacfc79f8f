"""Are these the GPUs that were here before, of the right model, and those that this job was given?"""

from __future__ import annotations

from typing import Any

from slurm_robust.nodecheck.engine.context import STAGES, Context
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check, Facts, Option, Options
from slurm_robust.nodecheck.nvml import facts as nvml
from slurm_robust.nodecheck.nvml import profiles
from slurm_robust.nodecheck.nvml.judging import Complaint, answered, odd_ones, settle, silent
from slurm_robust.nodecheck.nvml.session import DEADLINE_S, limit_s, of

_BY_SLURMD = ("prolog", "epilog", "periodic")
"""Stages that run outside any job's cgroup, and so see all GPUs."""
_MAX_KNOWN = 64
_ALMOST = 0.97
"""What ECC, MIG and newer drivers take for themselves differs by less."""
_MISSING = "drain; look for it in `lspci -d 10de:` and `dmesg | grep NVRM`; power-cycle"


def probe(context: Context, options: Options) -> Facts:
    """Who the GPUs are, and how many the driver and the job have."""
    facts = nvml.take(context, "memory", "mig_mode", kept_as=check.name)
    bound = context.path("/proc/driver/nvidia/gpus")
    try:
        in_driver = sorted(entry.name for entry in bound.iterdir())
    except OSError:
        in_driver = []
    missing = of(context).unknown(context.job_instances, limit_s(context) / 4)
    return {**facts, "in_driver": in_driver, "job_gpus": list(context.job_gpus), "job_instances_missing": missing}


def judge(facts: Facts, options: Options) -> Finding:
    """Fails where the site's word or this job's is broken; what changed since the last look only warns."""
    gpus = facts["gpus"]
    nothing = silent(facts)
    hidden = nothing is not None and nothing.reason == "no_gpu" and [*_job(facts), *_changes(facts)]
    if nothing is not None and not hidden:
        return nothing
    models = sorted({profiles.plain(gpu["model"]) for gpu in gpus if gpu["model"]})
    fails = [*_job(facts), *_models(gpus, options), *_memory(facts)]
    passed = ("gpus_known", f"{len(gpus)} × {' and '.join(models) or 'a GPU without a name'}")
    told = [{"bus": gpu["bus"], "minor": gpu["minor"], "uuid": gpu["uuid"], "model": gpu["model"]} for gpu in gpus]
    return settle([*fails, *_changes(facts)], passed, {"known": told, "job_gpus": facts["job_gpus"]})


def _job(facts: Facts) -> list[Complaint]:
    """GPUs of the job that are not there; ids beyond NVML's own are none of its minors, and say nothing."""
    gpus = facts["gpus"]
    if facts["job_instances_missing"] and facts["stage"] == "prolog":
        words = f"the job was given {facts['job_instances_missing'][0]}, which the driver does not have"
        remedy = "compare `nvidia-smi -L` with gres.conf; make the instances anew, then `systemctl restart slurmd`"
        return [Complaint(Status.FAIL, "job_instance_missing", words, remedy)]
    minors = {gpu["minor"] for gpu in gpus if gpu["minor"] is not None and not gpu["lost"]}
    if any(gpu["values"].get("mig_mode", [0])[0] for gpu in gpus) or facts["stage"] not in _BY_SLURMD:
        return []
    if len(minors) != len([gpu for gpu in gpus if not gpu["lost"]]):
        return []
    # Slurm counts the device files of its Gres; where these are not the driver's minors, only too few of them tell.
    wanted = facts["job_gpus"]
    if len(wanted) > len(minors):
        words = f"the job was given {len(wanted)} GPUs, {len(minors)} answer"
        return [Complaint(Status.FAIL, "job_gpu_missing", words, _MISSING)]
    absent = sorted(set(wanted) - minors)
    if absent:
        words = f"the job was given GPU {', '.join(map(str, absent))}, which the driver does not have by that number"
        return [
            Complaint(Status.WARN, "job_gpu_unknown", words, "compare gres.conf with /dev/nvidia* and `nvidia-smi -L`")
        ]
    return []


def _models(gpus: list[dict[str, Any]], options: Options) -> list[Complaint]:
    if not options["model"]:
        return []
    wanted = profiles.plain(options["model"])
    remedy = "correct nodecheck.options.gpu_identity.model, or take the node out"
    return [
        Complaint(Status.FAIL, "wrong_model", f"{profiles.plain(gpu['model'])} instead of {wanted}", remedy, gpu)
        for gpu in gpus
        if gpu["model"] and profiles.plain(gpu["model"]) != wanted
    ]


def _memory(facts: Facts) -> list[Complaint]:
    """Memory that is not there; a virtual GPU has another name, and so no profile."""
    said = []
    told = [(gpu, memory["total"] >> 20) for gpu, memory in answered(facts, "memory")]
    for gpu, total_mib in told:
        least = gpu["profile"].get("memory_mib", 0)
        if 0 < total_mib < least * _ALMOST:
            words = f"{total_mib} MiB of memory instead of {least} or more"
            said.append(Complaint(Status.FAIL, "memory_missing", words, "drain and have the GPU looked at", gpu))
    if not said:
        rounded = [(gpu, round(total_mib / 1024)) for gpu, total_mib in told]
        for gpu, gib in odd_ones(rounded):
            words = f"{gib} GiB of memory, unlike the other GPUs"
            said.append(Complaint(Status.WARN, "memory_odd", words, "compare `nvidia-smi -q -d MEMORY`", gpu))
    return said


def _changes(facts: Facts) -> list[Complaint]:
    said = []
    here = {gpu["uuid"] for gpu in facts["gpus"] if gpu["uuid"]}
    unnamed = any(not gpu["uuid"] for gpu in facts["gpus"])
    known = facts["kept"].get("known")
    if facts["stage"] in _BY_SLURMD and isinstance(known, dict) and not unnamed:
        for uuid in sorted(set(known) - here)[:3]:
            words = f"GPU {uuid} ({known[uuid]}) was here before and is gone"
            remedy = f"{_MISSING}; if it was taken out, remove gpu_identity.json from nodecheck.cache_dir"
            said.append(Complaint(Status.WARN, "gpu_gone", words, remedy))
    uuids = [gpu["uuid"] for gpu in facts["gpus"] if gpu["uuid"]]
    if len(uuids) != len(here):
        said.append(Complaint(Status.WARN, "same_uuid", "two GPUs have the same UUID", "run `nvidia-smi -L`"))
    if facts["stage"] in _BY_SLURMD and len(facts["in_driver"]) > len(facts["gpus"]):
        words = f"the driver has {len(facts['in_driver'])} GPUs, NVML shows {len(facts['gpus'])}"
        said.append(
            Complaint(Status.WARN, "gpu_hidden", words, "read `dmesg | grep NVRM`; drained in `nvidia-smi drain -q`?")
        )
    return said


def remember(facts: Facts, options: Options) -> Facts | None:
    """Every GPU ever seen here, until the folder is emptied (a boot does, where it lies in /run)."""
    if facts["stage"] not in _BY_SLURMD or not facts["gpus"]:
        return None
    known = facts["kept"].get("known")
    merged = {str(uuid): str(bus) for uuid, bus in known.items()} if isinstance(known, dict) else {}
    merged.update({gpu["uuid"]: gpu["bus"] for gpu in facts["gpus"] if gpu["uuid"]})
    return {"known": merged} if len(merged) <= _MAX_KNOWN else None


def watch(facts: Facts, options: Options) -> list[tuple[str, ...]]:
    """The job that starts may be given more than this one, and than NVML shows."""
    mig = any(gpu["values"].get("mig_mode", [0])[0] for gpu in facts["gpus"])
    return [("gpus", str(len(facts["gpus"])))] if facts["gpus"] and not mig else []


check = Check(
    name="gpu_identity",
    question="Are these the GPUs that were here before, of the right model, and those that this job was given?",
    reads="NVML: UUID, PCI name, minor, product name, memory; /proc/driver/nvidia/gpus; the job's GPUs by slurmd",
    cost="six calls a GPU, 1–3 ms",
    stages=STAGES,
    probe=probe,
    judge=judge,
    remember=remember,
    watch=watch,
    lane="nvml",
    deadline_s=DEADLINE_S,
    options={
        "model": Option(
            "", "product name that every GPU must have; empty does not say", "ours: only the site knows its nodes"
        )
    },
)
