"""Do all CPUs run as fast as they may, with the same microcode?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import processes, small_files

_CPU = "/sys/devices/system/cpu"


def probe(context: Context, options: Options) -> Facts:
    """Governors, capped policies, turbo and microcode versions, each with the CPUs that have it."""
    folder = context.path(_CPU)
    governors: dict[str, int] = {}
    capped: dict[str, float] = {}
    for policy in small_files.matching(folder / "cpufreq", "policy[0-9]*"):
        governor = small_files.text(policy / "scaling_governor", 32)
        if governor:
            governors[governor] = governors.get(governor, 0) + 1
        most, may = small_files.number(policy / "scaling_max_freq"), small_files.number(policy / "cpuinfo_max_freq")
        if most and may and 0 < most < may:
            capped[policy.name] = round(most / may, 3)
    microcode: dict[str, int] = {}
    for cpu in small_files.matching(folder, "cpu[0-9]*"):
        version = small_files.text(cpu / "microcode/version", 32)
        if version:
            microcode[version] = microcode.get(version, 0) + 1
    no_turbo, boost = small_files.number(folder / "intel_pstate/no_turbo"), small_files.number(folder / "cpufreq/boost")
    turbo = {0: "on", 1: "off"}.get(-1 if no_turbo is None else no_turbo) or {1: "on", 0: "off"}.get(
        -1 if boost is None else boost
    )
    return {
        "governors": governors,
        "capped": capped,
        "microcode": microcode,
        "turbo": turbo or "",
        "jobs": len(processes.job_managers(context)),
    }


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: a slow CPU slows training, but trains. Settings that a running job asked for are not judged."""
    governors = {} if facts["jobs"] else facts["governors"]
    capped = {} if facts["jobs"] else facts["capped"]
    slow = {name: share for name, share in capped.items() if share < options["warn_cap_share"]}
    if slow:
        name = min(slow, key=lambda name: slow[name])
        sentence = f"the frequency of {len(slow)} CPU policies is capped, {name} at {slow[name]:.0%} of its maximum"
        remedy = "a job's `--cpu-freq` may have stayed behind: `cpupower frequency-set` puts it back"
        return Finding.warn("cpu_capped", sentence, remedy, {**facts, "capped": dict(list(slow.items())[:32])})
    facts = {**facts, "capped": dict(list(facts["capped"].items())[:32])}
    wrong = sorted(name for name in governors if options["governor"] and name != options["governor"])
    if wrong or len(governors) > 1:
        expected = f", {options['governor']} is expected" if wrong else ", one is usual"
        sentence = f"CPU governor {' and '.join(sorted(governors))}{expected}"
        return Finding.warn("cpu_governor", sentence, "`cpupower frequency-set -g GOVERNOR`", facts)
    if options["turbo"] and facts["turbo"] and facts["turbo"] != options["turbo"]:
        sentence = f"turbo is {facts['turbo']}, {options['turbo']} is expected"
        return Finding.warn("cpu_turbo", sentence, "set intel_pstate/no_turbo or cpufreq/boost in /sys", facts)
    if len(facts["microcode"]) > 1:
        sentence = f"CPUs have different microcode: {', '.join(sorted(facts['microcode']))}"
        return Finding.warn("microcode_differs", sentence, "reboot, so that all CPUs load the same", facts)
    if not facts["governors"] and not facts["microcode"]:
        return Finding.skip("no_cpu_settings", "the kernel shows neither frequencies nor microcode here")
    return Finding.passed("cpus_alike", "all CPUs are set alike", facts)


check = Check(
    **Check.parts_of(__name__),
    reads=f"{_CPU}/cpufreq/policy*, {_CPU}/cpu*/microcode/version, intel_pstate/no_turbo, cpufreq/boost; jobs here",
    cost="four small reads a CPU, 2–15 ms",
    lane="files",
    options={
        "governor": Option("", "governor of all CPUs; empty: any", "ours: with intel_pstate `powersave` is fast too"),
        "turbo": Option("", "`on` or `off`; empty: any", "ours", allowed=("on", "off")),
        "warn_cap_share": Option(
            0.8, "share of the CPU's maximum below which a cap warns", "ours: many sites cap to the nominal frequency"
        ),
    },
)
