"""Are all CPUs there and online?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import slurm_conf, small_files

_CPU = "/sys/devices/system/cpu"


def probe(context: Context, options: Options) -> Facts:
    """CPUs present and online, and whether two threads share a core."""
    folder = context.path(_CPU)
    present = small_files.cpus(small_files.text(folder / "present", 4096))
    listed = small_files.text(folder / "online", 4096)
    online = small_files.cpus(listed)
    return {
        "present": len(present),
        "online": len(online),
        "listed": listed,
        "offline": small_files.ranges(present - online),
        "smt_control": small_files.text(folder / "smt/control", 32),
        "smt_active": small_files.text(folder / "smt/active", 8),
        "declared": slurm_conf.declared(context, slurm_conf.cpus),
    }


def _on_purpose(facts: Facts, expected: int) -> bool:
    """Return whether the site counts no more CPUs, or the second thread of each core is switched off.

    The kernel's switch does that, or one CPU at a time: then half of all CPUs are left, and no core has two.
    """
    if facts["online"] == expected or facts["smt_control"] in ("off", "forceoff"):
        return True
    return bool(facts["smt_active"] == "0" and 2 * facts["online"] == facts["present"])


def _fewer(facts: Facts, expected: int) -> Finding | None:
    """Return a finding if fewer CPUs are online than the site or Slurm counts."""
    online = facts["online"]
    if expected and online < expected:
        sentence = f"{online} CPUs are online, {expected} are expected"
        remedy = (
            "look for a failed socket or changed firmware settings: `lscpu`; `chcpu -e` brings back what is offline"
        )
        return Finding.fail("cpu_missing", sentence, remedy, facts)
    if online < facts["declared"] and not expected:
        sentence = f"{online} CPUs are online, slurm.conf gives the node {facts['declared']}"
        remedy = "look for a failed socket or changed firmware settings; compare `slurmd -C` with slurm.conf"
        return Finding.warn("cpu_fewer_than_slurm_s", sentence, remedy, facts)
    return None


def judge(facts: Facts, options: Options) -> Finding:
    """Fail if fewer CPUs are online than the site expects; CPUs that are offline by hand only warn."""
    online, expected = facts["online"], options["expected"]
    if not online:
        return Finding.skip("no_cpus_listed", "the kernel lists no CPUs here")
    if (fewer := _fewer(facts, expected)) is not None:
        return fewer
    active = {"1": "on", "0": "off"}.get(facts["smt_active"], "")
    if options["smt"] and active and active != options["smt"]:
        sentence = f"SMT (two threads a core) is {active}, {options['smt']} is expected"
        return Finding.warn(
            "smt_differs", sentence, "change it in the firmware or in /sys/devices/system/cpu/smt", facts
        )
    if facts["offline"] and not _on_purpose(facts, expected):
        sentence = f"CPUs {facts['offline']} are offline"
        return Finding.warn("cpu_offline", sentence, f"`chcpu -e {facts['offline']}`, or find out why", facts)
    if expected and online > expected:
        sentence = f"{online} CPUs are online, {expected} are expected"
        return Finding.warn("cpu_surplus", sentence, "correct nodecheck.options.cpu.expected, or look at SMT", facts)
    return Finding.passed("cpus_online", f"{online} CPUs are online", facts)


def valid_while(facts: Facts, options: Options) -> list[tuple[str, ...]]:
    """Return the condition that the same CPUs stay online."""
    return [("says", f"{_CPU}/online", facts["listed"])] if 0 < len(facts["listed"]) < 200 else []


check = Check(
    **Check.parts_of(__name__),
    reads=f"{_CPU}/{{present,online,smt/control,smt/active}}; slurm.conf, not in prolog and epilog",
    cost="four small reads, under 1 ms",
    lane="files",
    options={
        "expected": Option(
            0, "CPUs (threads) that must be online; 0: as in slurm.conf, which only warns", "ours: only the site knows"
        ),
        "smt": Option("", "`on` or `off`; empty: any", "ours", allowed=("on", "off")),
    },
)
