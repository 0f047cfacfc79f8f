"""Are the kernel's network settings as the site wants them?"""

from __future__ import annotations

import re

from slurm_robust.nodecheck.checks import Check, CheckError, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude
from slurm_robust.nodecheck.sources import small_files

_NAME = re.compile(r"net(?:[./][A-Za-z0-9_-]+){1,6}\Z")


def validate(options: Options) -> None:
    """Refuse a name that is not a setting below net."""
    for name in (*options["minimum"], *options["exact"]):
        if not isinstance(name, str) or not _NAME.match(name):
            raise CheckError(f"nodecheck.options.network_sysctls: {name!r} is not a setting below net")


def probe(context: Context, options: Options) -> Facts:
    """Read the settings that the site names; with slashes, a part may have dots (`net/ipv4/conf/eth0.1/mtu`)."""
    found = {}
    validate(options)
    for name in (*options["minimum"], *options["exact"]):
        path = name if "/" in name else name.replace(".", "/")
        found[name] = small_files.word(context.path("/proc/sys") / path)
    return {"found": found}


def _faults(facts: Facts, options: Options) -> Faults:
    for name, wanted in options["minimum"].items():
        # `net.ipv4.tcp_rmem` has three numbers; its largest is what a site means.
        numbers = [number for cell in facts["found"][name].split() if (number := small_files.integer(cell)) is not None]
        if numbers and isinstance(wanted, int) and max(numbers) < wanted:
            sentence = f"{name} is {max(numbers)}, at least {wanted} is wanted"
            yield Fault.warn("setting_too_low", sentence, f"`sysctl {name}`; set it in /etc/sysctl.d")
    for name, wanted in options["exact"].items():
        said = facts["found"][name]
        if said and said.split() != str(wanted).split():
            sentence = f"{name} is {said}, {wanted} is wanted"
            yield Fault.warn("setting_differs", sentence, f"`sysctl {name}`; set it in /etc/sysctl.d")


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most; a setting that this kernel does not have is passed over."""
    if not facts["found"]:
        return Finding.skip("nothing_named", "the site names no setting")
    healthy = Finding.passed("settings_as_wanted", f"{len(facts['found'])} settings are as wanted", facts)
    return conclude(_faults(facts, options), healthy, facts)


check = Check(
    **Check.parts_of(__name__),
    reads="/proc/sys/net/*, those that the site names",
    cost="one read a setting",
    lane="files",
    options={
        "minimum": Option({}, "least values: {`net.core.rmem_max`: 16777216}; of several the largest", "ours: empty"),
        "exact": Option({}, "values: {`net.ipv4.conf.all.rp_filter`: 2}", "ours: empty", items=(int, float, str)),
    },
)
