"""Are these the GPUs that were here before, of the right model, and those that this job was given?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import gpu_profiles
from slurm_robust.nodecheck.nvml import facts as nvml
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, has_mig, outliers, reported, unanswered
from slurm_robust.nodecheck.nvml.session import limit_s, of
from slurm_robust.nodecheck.sources import small_files

_BY_SLURMD = ("prolog", "epilog", "periodic")
"""Stages that run outside any job's cgroup, and so see all GPUs."""
_MAX_KNOWN = 64
_ALMOST = 0.97
"""The share of the expected memory that a GPU must have: ECC, MIG and newer drivers reserve less than the rest."""
_MISSING = "drain; look for it in `lspci -d 10de:` and `dmesg | grep NVRM`; power-cycle"


def probe(context: Context, options: Options) -> Facts:
    """Read the identity of the GPUs, and how many the driver and the job have."""
    facts = nvml.take(context, "memory", "mig_mode", kept_as=check.name)
    in_driver = small_files.names(context.path("/proc/driver/nvidia/gpus"))
    missing = of(context).unknown(context.job_instances, limit_s(context) / 4)
    return {**facts, "in_driver": in_driver, "job_gpus": list(context.job_gpus), "job_instances_missing": missing}


def judge(facts: Facts, options: Options) -> Finding:
    """Fail if the site's expectation or this job's GPUs are violated; changes since the last run only warn."""
    gpus = facts["gpus"]
    nothing = unanswered(facts)
    hidden = nothing is not None and nothing.reason == "no_gpu" and [*_job(facts), *_changes(facts)]
    if nothing is not None and not hidden:
        return nothing
    models = sorted({gpu_profiles.plain(gpu["model"]) for gpu in gpus if gpu["model"]})
    fails = [*_job(facts), *_models(gpus, options), *_memory(facts)]
    passed = ("gpus_known", f"{len(gpus)} × {' and '.join(models) or 'a GPU without a name'}")
    told = [{"bus": gpu["bus"], "minor": gpu["minor"], "uuid": gpu["uuid"], "model": gpu["model"]} for gpu in gpus]
    return conclude_gpus([*fails, *_changes(facts)], passed, {"known": told, "job_gpus": facts["job_gpus"]})


def _job(facts: Facts) -> list[Fault]:
    """GPUs of the job that are not there; ids that are not minor numbers of NVML's GPUs say nothing."""
    gpus = facts["gpus"]
    if facts["job_instances_missing"] and facts["stage"] == "prolog":
        text = f"the job was given {facts['job_instances_missing'][0]}, which the driver does not have"
        remedy = "compare `nvidia-smi -L` with gres.conf; make the instances anew, then `systemctl restart slurmd`"
        return [Fault.fail("job_instance_missing", text, remedy)]
    minors = {gpu["minor"] for gpu in gpus if gpu["minor"] is not None and not gpu["lost"]}
    if any(has_mig(gpu) for gpu in gpus) or facts["stage"] not in _BY_SLURMD:
        return []
    if len(minors) != len([gpu for gpu in gpus if not gpu["lost"]]):
        return []
    # Slurm counts the device files of its Gres; where these are not the driver's minors, only too few of them tell.
    wanted = facts["job_gpus"]
    if len(wanted) > len(minors):
        text = f"the job was given {len(wanted)} GPUs, {len(minors)} answer"
        return [Fault.fail("job_gpu_missing", text, _MISSING)]
    absent = sorted(set(wanted) - minors)
    if absent:
        text = f"the job was given GPU {', '.join(map(str, absent))}, which the driver does not have by that number"
        return [Fault.warn("job_gpu_unknown", text, "compare gres.conf with /dev/nvidia* and `nvidia-smi -L`")]
    return []


def _models(gpus: list[Facts], options: Options) -> list[Fault]:
    if not options["model"]:
        return []
    wanted = gpu_profiles.plain(options["model"])
    remedy = "correct nodecheck.options.gpu_identity.model, or take the node out"
    return [
        Fault.fail("wrong_model", f"{gpu_profiles.plain(gpu['model'])} instead of {wanted}", remedy, gpu)
        for gpu in gpus
        if gpu["model"] and gpu_profiles.plain(gpu["model"]) != wanted
    ]


def _memory(facts: Facts) -> list[Fault]:
    """Memory that is not there; a virtual GPU has another name, and so no profile."""
    faults = []
    told = [(gpu, memory["total"] >> 20) for gpu, memory in reported(facts, "memory")]
    for gpu, total_mib in told:
        least = gpu["profile"].get("memory_mib", 0)
        if 0 < total_mib < least * _ALMOST:
            text = f"{total_mib} MiB of memory instead of {least} or more"
            faults.append(Fault.fail("memory_missing", text, "drain and have the GPU looked at", gpu))
    if not faults:
        rounded = [(gpu, round(total_mib / 1024)) for gpu, total_mib in told]
        for gpu, gib in outliers(rounded):
            text = f"{gib} GiB of memory, unlike the other GPUs"
            faults.append(Fault.warn("memory_odd", text, "compare `nvidia-smi -q -d MEMORY`", gpu))
    return faults


def _changes(facts: Facts) -> list[Fault]:
    faults = []
    here = {gpu["uuid"] for gpu in facts["gpus"] if gpu["uuid"]}
    unnamed = any(not gpu["uuid"] for gpu in facts["gpus"])
    known = facts["kept"].get("known")
    if facts["stage"] in _BY_SLURMD and isinstance(known, dict) and not unnamed:
        for uuid in sorted(set(known) - here)[:3]:
            text = f"GPU {uuid} ({known[uuid]}) was here before and is gone"
            remedy = f"{_MISSING}; if it was taken out, remove gpu_identity.json from nodecheck.cache_dir"
            faults.append(Fault.warn("gpu_gone", text, remedy))
    uuids = [gpu["uuid"] for gpu in facts["gpus"] if gpu["uuid"]]
    if len(uuids) != len(here):
        faults.append(Fault.warn("same_uuid", "two GPUs have the same UUID", "run `nvidia-smi -L`"))
    if facts["stage"] in _BY_SLURMD and len(facts["in_driver"]) > len(facts["gpus"]):
        text = f"the driver has {len(facts['in_driver'])} GPUs, NVML shows {len(facts['gpus'])}"
        faults.append(Fault.warn("gpu_hidden", text, "read `dmesg | grep NVRM`; drained in `nvidia-smi drain -q`?"))
    return faults


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep every GPU ever seen here, until the folder is emptied (by a boot, if it lies in /run)."""
    if facts["stage"] not in _BY_SLURMD or not facts["gpus"]:
        return None
    known = facts["kept"].get("known")
    merged = {str(uuid): str(bus) for uuid, bus in known.items()} if isinstance(known, dict) else {}
    merged.update({gpu["uuid"]: gpu["bus"] for gpu in facts["gpus"] if gpu["uuid"]})
    return {"known": merged} if len(merged) <= _MAX_KNOWN else None


def valid_while(facts: Facts, options: Options) -> list[tuple[str, ...]]:
    """Return the condition that a job gets no more GPUs than NVML shows: a job may be given more than this one."""
    mig = any(has_mig(gpu) for gpu in facts["gpus"])
    return [("gpus", str(len(facts["gpus"])))] if facts["gpus"] and not mig else []


check = Check(
    **Check.parts_of(__name__),
    **nvml.NVML_LANE,
    reads="NVML: UUID, PCI name, minor, product name, memory; /proc/driver/nvidia/gpus; the job's GPUs by slurmd",
    cost="six calls a GPU, 1–3 ms",
    options={"model": Option("", "product name that every GPU must have; empty: any", "ours: only the site knows")},
)
