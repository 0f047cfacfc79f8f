"""Is the machine the model, with the BIOS, that the site expects?"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from slurm_robust.nodecheck.checks import Check, CheckError, Context, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine.faults import Fault, conclude
from slurm_robust.nodecheck.sources import small_files

_FOLDER = "/sys/class/dmi/id"
_FIELDS = ("sys_vendor", "product_name", "bios_vendor", "bios_version", "bios_date")
_OPTIONS = {"bios_version": "BIOS", "product_name": "model"}


def _patterns(options: Options, name: str) -> list[str]:
    wanted: list[Any] = options[name]
    for value in wanted:
        if not isinstance(value, str):
            raise CheckError(f"nodecheck.options.firmware.{name}: {value!r} is not text; put it in quotes")
    return list(wanted)


def probe(context: Context, options: Options) -> Facts:
    """Read what the BIOS says of itself and its board; anybody may read that, serial numbers are not touched."""
    for name in _OPTIONS:
        _patterns(options, name)
    return {
        name: "".join(c for c in small_files.text(context.path(f"{_FOLDER}/{name}")) if c.isprintable())
        for name in _FIELDS
    }


def judge(facts: Facts, options: Options) -> Finding:
    """Warn of each difference, or fail if the site says so: a new board must not drain a fleet by itself."""
    told = {name: value for name, value in facts.items() if value}
    if not told:
        return Finding.skip("no_dmi", "the machine reports neither model nor BIOS (no DMI)")
    status = Status.FAIL if options["fail"] else Status.WARN
    faults = []
    for name, words in _OPTIONS.items():
        wanted = _patterns(options, name)
        if wanted and told.get(name) and not any(fnmatchcase(told[name], pattern) for pattern in wanted):
            sentence = f"the {words} is {told[name]}, not {' or '.join(wanted)}"
            remedy = f"bring it in line with the others, or correct nodecheck.options.firmware.{name}"
            faults.append(Fault(status, f"{name}_differs", sentence, remedy))
    said = " ".join(told.get(name, "") for name in ("sys_vendor", "product_name")).strip()
    bios = f"BIOS {told['bios_version']}" if "bios_version" in told else "BIOS unknown"
    return conclude(faults, Finding.passed("firmware_as_wanted", f"{said or 'machine'}, {bios}", told), told)


_OURS = "ours: only the site knows"
check = Check(
    **Check.parts_of(__name__),
    reads=f"{_FOLDER}/{{{','.join(_FIELDS)}}}",
    cost="five small reads, below 1 ms",
    lane="files",
    options={
        "bios_version": Option([], "patterns of versions one of which must be there, as ['2.1?', '3.*']", _OURS),
        "product_name": Option([], "patterns of models one of which it must be, as ['PowerEdge XE9680*']", _OURS),
        "fail": Option(False, "whether a difference makes the node unfit", "ours: half of a roll-out is no fault"),
    },
)
