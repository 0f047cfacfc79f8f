"""Are the GPUs whole, or cut into MIG instances, as the site wants them?"""

from __future__ import annotations

from slurm_robust.nodecheck.engine.context import STAGES
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check, CheckError, Facts, Option, Options
from slurm_robust.nodecheck.nvml.facts import probe_of
from slurm_robust.nodecheck.nvml.judging import Complaint, answered, settle, silent, untold
from slurm_robust.nodecheck.nvml.session import DEADLINE_S

_MODES = {"on": 1, "off": 0}


def judge(facts: Facts, options: Options) -> Finding:
    """Fails where the site has named a mode that a GPU has not; a change that waits for a reset warns.

    Raises:
        CheckError: the option names a mode that does not exist.
    """
    if options["mode"] not in ("", *_MODES):
        raise CheckError(f"nodecheck.options.gpu_mig.mode: {options['mode']!r} is none of {', '.join(_MODES)}")
    wanted = _MODES.get(options["mode"])
    if (nothing := silent(facts) or untold(facts, "mig_mode", "MIG", needed=wanted is not None)) is not None:
        return nothing
    said = []
    told = answered(facts, "mig_mode")
    for gpu, (now, pending) in told:
        if wanted is not None and now != wanted:
            words = f"MIG is {'on' if now else 'off'} instead of {options['mode']}"
            said.append(
                Complaint(Status.FAIL, "mig_mode", words, f"`nvidia-smi -i N -mig {wanted}`, then reset it", gpu)
            )
        elif now != pending:
            words = f"MIG goes {'on' if pending else 'off'} at the next reset"
            said.append(Complaint(Status.WARN, "mig_pending", words, "reset the GPU when the node is idle", gpu))
    partitioned = sum(1 for _, (now, _) in told if now)
    return settle(said, ("mig_fits", f"MIG is on for {partitioned} of {len(told)} GPUs"))


check = Check(
    name="gpu_mig",
    question="Are the GPUs whole, or cut into MIG instances, as the site wants them?",
    reads="NVML: MIG mode now and after the next reset",
    cost="one call a GPU, under 1 ms",
    stages=STAGES,
    probe=probe_of("mig_mode"),
    judge=judge,
    lane="nvml",
    deadline_s=DEADLINE_S,
    options={"mode": Option("", "`on` or `off` for every GPU; empty does not say", "ours: a site may mix them")},
)
