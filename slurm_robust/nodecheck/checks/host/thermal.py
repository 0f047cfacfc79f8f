"""Are the processors too hot?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import check_state, counters
from slurm_robust.nodecheck.sources import small_files

_CPU = "/sys/devices/system/cpu"
_SENSORS = ("coretemp", "k10temp", "zenpower", "jc42", "cpu_thermal", "spd5118")
_MIN_WINDOW_S = 60.0


def probe(context: Context, options: Options) -> Facts:
    """Throttle counters of each processor, and sensors that say critical themselves."""
    counts: dict[str, int] = {}
    packages: set[str] = set()
    for cpu in small_files.matching(context.path(_CPU), "cpu[0-9]*"):
        package = small_files.text(cpu / "topology/physical_package_id", 16)
        # All CPUs of a package show the same counters.
        if not package or package in packages:
            continue
        packages.add(package)
        for kind in ("package_throttle_count", "package_throttle_total_time_ms"):
            value = small_files.number(cpu / "thermal_throttle" / kind)
            if value is not None:
                counts[f"{package} {kind}"] = value
    critical = []
    sensors = 0
    for hwmon in small_files.matching(context.path("/sys/class/hwmon"), "hwmon[0-9]*"):
        # Others (network cards, disks) ask their device, which may take long or hang.
        if small_files.text(hwmon / "name", 64) not in _SENSORS:
            continue
        for alarm in small_files.matching(hwmon, "temp*_crit_alarm"):
            sensors += 1
            if small_files.number(alarm) == 1:
                label = alarm.name.partition("_")[0]
                critical.append(small_files.text(hwmon / f"{label}_label", 64) or f"{hwmon.name}/{label}")
    return {
        "packages": len(packages),
        "sensors": sensors,
        "critical": critical[:32],
        "counts": counts,
        **check_state.since(context, check.name),
    }


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: a hot processor is slow, and protects itself."""
    remedy = "look at fans, inlet temperature and heat sinks: `ipmitool sdr type temperature`"
    if facts["critical"]:
        sentence = f"{', '.join(facts['critical'][:4])} is at its critical temperature"
        return Finding.warn("cpu_critical", sentence, remedy, {"critical": facts["critical"]})
    if not facts["counts"] and not facts["sensors"]:
        return Finding.skip("no_sensors", "the kernel shows no temperatures of the processors here")
    grown = counters.grown(facts)
    for name, new in grown.items():
        package, _, kind = name.partition(" ")
        if new.window_s < _MIN_WINDOW_S or not kind.endswith("time_ms"):
            continue
        share = new.delta / 1000 / new.window_s
        if share >= options["warn_throttled_share"] > 0:
            sentence = (
                f"processor {package} was slowed by heat {min(share, 1.0):.0%} of the last {new.window_s / 60:.0f} min"
            )
            return Finding.warn("cpu_throttled", sentence, remedy, {"counts": facts["counts"]})
    return Finding.passed("cpu_cool", "no processor is too hot", {"counts": facts["counts"]})


remember = counters.remember
check = Check(
    **Check.parts_of(__name__),
    reads=f"{_CPU}/cpu*/thermal_throttle/package_*, /sys/class/hwmon/*/temp*_crit_alarm of processors and memory",
    cost="a small read a CPU and sensor, 2–10 ms; in a process of its own",
    options={
        "warn_throttled_share": Option(
            0.05,
            "share of the time since the last run in which heat slowed a processor; 0: never",
            "ours: a twentieth of a step shows in its time",
        )
    },
)
