"""Are driver, CUDA and VBIOS what they should be, and the same on all GPUs?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Option, Options
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, needs_gpus, outliers, reported


def _cuda(number: object) -> str:
    """Return a version of CUDA as text: 12080 as 12.8."""
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) else ""


def _fits(version: str, wanted: str) -> bool:
    """Return whether a version is the wanted one, or a release of it: `570` fits 570.124.06 and not 5700."""
    return version == wanted or version.startswith(f"{wanted}.")


@needs_gpus()
def judge(facts: Facts, options: Options) -> Finding:
    """Fail if the node differs from the site's named versions; warn of GPUs that differ from their sisters."""
    driver, cuda = str(facts["system"].get("driver", "")), _cuda(facts["system"].get("cuda"))
    faults = []
    for what, version, wanted in (("driver", driver, options["driver"]), ("CUDA", cuda, options["cuda"])):
        if wanted and version and not _fits(version, wanted):
            text = f"{what} {version} instead of {wanted}"
            remedy = "install it and reboot, or correct nodecheck.options.gpu_versions"
            faults.append(Fault.fail(f"wrong_{what.lower()}", text, remedy))
    faults += _vbios(facts, options)
    vbios = sorted({value for _, value in reported(facts, "vbios")})
    passed = ("versions_fit", f"driver {driver or '?'}, CUDA {cuda or '?'}, VBIOS {' and '.join(vbios) or '?'}")
    images = sorted({value for _, value in reported(facts, "inforom_image")})
    return conclude_gpus(faults, passed, {"driver": driver, "cuda": cuda, "vbios": vbios, "inforom": images})


def _vbios(facts: Facts, options: Options) -> list[Fault]:
    told = reported(facts, "vbios")
    remedy = "flash the VBIOS that the vendor names for this board"
    if options["vbios"]:
        return [
            Fault.fail("wrong_vbios", f"VBIOS {value} instead of {options['vbios']}", remedy, gpu)
            for gpu, value in told
            if value != options["vbios"]
        ]
    return [
        Fault.warn("vbios_odd", f"VBIOS {value}, unlike the other GPUs'", remedy, gpu) for gpu, value in outliers(told)
    ]


probe = probe_of("vbios", "inforom_image")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: versions of driver, CUDA, VBIOS and InfoROM image",
    cost="two calls a GPU, under 1 ms",
    options={
        "driver": Option("", "driver version that must run, whole or its first parts; empty: any", "ours"),
        "cuda": Option("", "CUDA version that the driver must offer (`12.8`); empty: any", "ours"),
        "vbios": Option("", "VBIOS that every GPU must have; empty: all GPUs of a model the same", "ours"),
    },
)
