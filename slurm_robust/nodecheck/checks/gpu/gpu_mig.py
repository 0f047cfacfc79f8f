"""Are the GPUs whole, or cut into MIG instances, as the site wants them?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, CheckError, Facts, Finding, Option, Options
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, reported, unanswered, unreported

_MODES = {"on": 1, "off": 0}


def validate(options: Options) -> None:
    """Refuse a mode that does not exist."""
    if options["mode"] not in ("", *_MODES):
        raise CheckError(f"nodecheck.options.gpu_mig.mode: {options['mode']!r} is not one of {', '.join(_MODES)}")


def judge(facts: Facts, options: Options) -> Finding:
    """Fail if a GPU is not in the mode that the site has named; warn of a change that waits for a reset.

    Raises:
        CheckError: the option names a mode that does not exist.
    """
    validate(options)
    wanted = _MODES.get(options["mode"])
    if (nothing := unanswered(facts) or unreported(facts, "mig_mode", "MIG", needed=wanted is not None)) is not None:
        return nothing
    faults = []
    told = reported(facts, "mig_mode")
    for gpu, (now, pending) in told:
        if wanted is not None and now != wanted:
            text = f"MIG is {'on' if now else 'off'} instead of {options['mode']}"
            faults.append(Fault.fail("mig_mode", text, f"`nvidia-smi -i N -mig {wanted}`, then reset it", gpu))
        elif now != pending:
            text = f"MIG goes {'on' if pending else 'off'} at the next reset"
            faults.append(Fault.warn("mig_pending", text, "reset the GPU when the node is idle", gpu))
    partitioned = sum(1 for _, (now, _) in told if now)
    return conclude_gpus(faults, ("mig_fits", f"MIG is on for {partitioned} of {len(told)} GPUs"))


probe = probe_of("mig_mode")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: MIG mode now and after the next reset",
    cost="one call a GPU, under 1 ms",
    options={"mode": Option("", "`on` or `off` for every GPU; empty: any", "ours: a site may mix them")},
)
