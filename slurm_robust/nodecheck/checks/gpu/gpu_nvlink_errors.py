"""Do NVLinks make errors, or have to be trained anew?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import counters
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.fields import LINK_COUNTERS
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, needs_gpus

_TOTALS = {
    "nvlink_recoveries": "recoveries",
    "nvlink_replays": "replays",
    "nvlink_crc_flit": "crc_errors",
    "nvlink_crc_data": "crc_errors",
}
_WORDS = {"recoveries": "link recoveries", "replays": "replays", "crc_errors": "CRC errors"}
_REMEDY = "`nvidia-smi nvlink -e -i N`; run `dcgmi diag -r 3` on the idle node; reset the GPUs, repair if it stays"


def _counts(facts: Facts) -> dict[str, int]:
    """Return counters by GPU and kind: of all links if the board sums them up, else the sum over its links."""
    counts: dict[str, int] = {}
    for gpu in facts["gpus"]:
        values = gpu["values"]
        for name, kind in _TOTALS.items():
            if name in values:
                key = f"{gpu['uuid']}.{kind}"
                counts[key] = counts.get(key, 0) + int(values[name])
        for name in LINK_COUNTERS:
            if name in values:
                key = f"{gpu['uuid']}.link.{name.rpartition('.')[2]}"
                counts[key] = counts.get(key, 0) + int(values[name])
    return counts


@needs_gpus()
def judge(facts: Facts, options: Options) -> Finding:
    """Never fail: jobs go on over a link that corrects itself; `gpu_nvlink` and `xid` see a dead link."""
    counts = _counts(facts)
    if not counts:
        errors = {error for gpu in facts["gpus"] for error in gpu["errors"].values()}
        if errors - {"not_supported", "invalid_argument", "function_not_found"} and not any(
            g["lost"] for g in facts["gpus"]
        ):
            sentence = f"NVML does not report NVLink counters: {', '.join(sorted(errors))}"
            return Finding.unknown("not_told", sentence, "run `nvidia-smi nvlink -e`")
        return Finding.skip("not_supported", "the GPUs have no NVLink counters")
    grown = counters.grown(facts, counts)
    limits = {
        "recoveries": options["recoveries_per_hour"],
        "replays": options["replays_per_hour"],
        "crc_errors": options["crc_per_second"] * counters.HOUR_S,
    }
    faults = []
    for gpu in facts["gpus"]:
        for kind, limit in limits.items():
            for key in (f"{gpu['uuid']}.{kind}", f"{gpu['uuid']}.link.{kind}"):
                seen = grown.get(key)
                if seen and seen.delta >= options["least"] and seen.per_hour > limit:
                    text = f"{seen.delta} NVLink {_WORDS[kind]} in {max(1, round(seen.window_s / 60))} min"
                    faults.append(Fault.warn(f"nvlink_{kind}", text, _REMEDY, gpu))
                    break
    nonzero = {key: count for key, count in counts.items() if count}
    return conclude_gpus(faults, ("nvlinks_quiet", "NVLink errors do not grow"), {"counts": nonzero})


remember = counters.remember_of(_counts)
probe = probe_of(*_TOTALS, *LINK_COUNTERS, kept_as="gpu_nvlink_errors")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: replay, recovery and CRC counters, of the board or of every link",
    cost="one batch of 58 fields a GPU, 2–20 ms",
    options={
        "recoveries_per_hour": Option(
            1.0, "recoveries an hour above which it warns", "NVIDIA's DCGM takes a single one for a fault; ours: a rate"
        ),
        "replays_per_hour": Option(1000.0, "replays an hour above which it warns", "ours: replays lose nothing"),
        "crc_per_second": Option(100.0, "CRC errors a second above which it warns", "NVIDIA's DCGM: its limit"),
        "least": Option(3, "events since the last run below which no rate is judged", "ours: one event proves nothing"),
    },
)
