"""Lists the checks by name: what each check reads, what it costs, and which functions it consists of."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_robust.nodecheck.engine.context import STAGES, Context
from slurm_robust.nodecheck.engine.finding import Finding

Facts = dict[str, Any]
Options = Mapping[str, Any]


class CheckError(ValueError):
    """An unknown check or option, or a value of the wrong type; the message says which."""


@dataclass(frozen=True)
class Option:
    """A check's setting, `nodecheck.options.<check>.<name>` in robust.yaml.

    Attributes:
        default: The value if the site sets none; only values of its type are accepted.
        meaning: The effect of the option, with the unit.
        source: Where the default comes from.
        allowed: The allowed texts: for a text, for each item of a list, for each value of a mapping; empty: any.
        keys: The allowed keys of a mapping; empty: any.
        items: Types of a list's items (empty: texts) or a mapping's values (empty: numbers).
    """

    default: Any
    meaning: str
    source: str
    allowed: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    items: tuple[type, ...] = ()

    def problem(self, value: Any) -> str:
        """Return what in a value of the default's type does not fit; empty if nothing is known."""
        if isinstance(value, dict):
            for key, inner in value.items():
                if not isinstance(key, str) or (self.keys and key not in self.keys):
                    return f"{key!r} is not one of {', '.join(self.keys)}" if self.keys else f"{key!r} is not text"
                if why := self._item(inner, self.items or ((str,) if self.allowed else (int, float))):
                    return f"{key}: {why}"
        if isinstance(value, list):
            return next((why for inner in value if (why := self._item(inner, self.items or (str,)))), "")
        return self._item(value, (str,)) if isinstance(value, str) and value else ""

    def _item(self, value: Any, types: tuple[type, ...]) -> str:
        if type(value) not in types:
            return f"{value!r} is no {' or '.join(kind.__name__ for kind in types)}"
        return (
            f"{value!r} is not one of {', '.join(self.allowed)}" if self.allowed and value not in self.allowed else ""
        )


@dataclass(frozen=True)
class Check:
    """A check: a probe that reads facts, and a pure function that judges them.

    Attributes:
        name: The name of the check's module; `--only` and `nodecheck.disable` take it, or the name of its group.
        question: The question that it answers, in one sentence: the first line of its module's docstring.
        reads: The files and calls it reads.
        cost: The cost of one run, in words.
        stages: The stages in which it runs: all whose list in `_NOT_IN` does not name it.
        probe: Reads facts (plain JSON values). Runs in a process of its own; may block, fail or crash.
        judge: Makes a finding of facts and options; pure.
        remember: Returns what to keep of facts and options for the next run, or None to keep the old value; pure.
        validate: Raises CheckError for options of the right types that make no sense; pure.
        deadline_s: The check's own deadline; None: `nodecheck.deadline_s`.
        lane: Probes of one lane share a process and the values they read (`Context.once`); empty: a process of its own,
            for a probe that may block in the kernel.
        always: Whether it runs in each prolog, even with a valid cached verdict: its result can change within minutes,
            unnoticed.
        invalidating_words: A cached verdict is valid only while no new record of the kernel log has one of these words.
        valid_while: The conditions under which a cached verdict stays valid, see `fast_path.CONDITIONS`; pure.
        if_not_run: The conditions if the run that writes the verdict is of a stage without this check; if empty, the
            prolog then runs this check.
        strikes: Failures in a row that the periodic stage needs before one counts; until then it warns.
        window_s: The longest time between two of these runs.
    """

    name: str
    question: str
    reads: str
    cost: str
    stages: tuple[str, ...]
    probe: Callable[[Context, Options], Facts]
    judge: Callable[[Facts, Options], Finding]
    options: Mapping[str, Option] = field(default_factory=dict)
    remember: Callable[[Facts, Options], Facts | None] | None = None
    validate: Callable[[Options], object] | None = None
    deadline_s: float | None = None
    lane: str = ""
    always: bool = False
    invalidating_words: tuple[str, ...] = ()
    valid_while: Callable[[Facts, Options], list[tuple[str, ...]]] | None = None
    if_not_run: tuple[tuple[str, ...], ...] = ()
    strikes: int = 1
    window_s: float = 1800.0

    @staticmethod
    def parts_of(module_name: str) -> dict[str, Any]:
        """Return the fields that follow from the module: name, docstring, functions, and the stages that run it."""
        module = sys.modules[module_name]
        name = module_name.rpartition(".")[2]
        parts: dict[str, Any] = {"name": name, "question": (module.__doc__ or "").partition("\n")[0]}
        parts["stages"] = tuple(stage for stage in STAGES if name not in _NOT_IN[stage])
        functions = ("probe", "judge", "remember", "validate", "valid_while")
        return parts | {function: vars(module)[function] for function in functions if function in vars(module)}

    def every_option(self) -> dict[str, Option]:
        """Return the check's own options, and the options that every check in the periodic stage has."""
        if "periodic" not in self.stages:
            return dict(self.options)
        return {
            **self.options,
            "strikes": Option(self.strikes, "failures in a row from which the periodic stage counts them", "ours"),
            "window_s": Option(self.window_s, "seconds that two of these runs may be apart", "ours"),
        }

    def settings(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults, overridden by the site's choices.

        Raises:
            CheckError: no such option, or a value of the wrong type.
        """
        settings = {name: option.default for name, option in self.every_option().items()}
        for name, value in chosen.items():
            if name not in settings:
                known = ", ".join(settings) or "none"
                raise CheckError(f"nodecheck.options.{self.name}.{name}: no such option (it has: {known})")
            settings[name] = self._typed(name, value, settings[name])
        return settings

    def require_sense(self, chosen: Mapping[str, Any]) -> None:
        """Refuse mistyped values in the site's choices, also within lists and mappings.

        Raises:
            CheckError: raised as by `settings`, or the content of a value does not fit; says where.
        """
        settings, options = self.settings(chosen), self.every_option()
        for name in chosen:
            if why := options[name].problem(settings[name]):
                raise CheckError(f"nodecheck.options.{self.name}.{name}: {why}")
        if self.validate is not None:
            self.validate(settings)

    def _typed(self, name: str, value: Any, default: Any) -> Any:
        if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if type(value) is not type(default):
            raise CheckError(
                f"nodecheck.options.{self.name}.{name}: {value!r} is no {type(default).__name__} "
                f"(the default is {default!r})"
            )
        return value


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GROUPS: Mapping[str, tuple[str, ...]] = {
    "gpu": _words(
        "xid gpu_count gpu_driver gpu_identity gpu_recovery gpu_ecc gpu_rows gpu_pages gpu_nvlink gpu_nvlink_errors "
        "gpu_fabric gpu_pcie gpu_pcie_errors gpu_throttle gpu_temperature gpu_power gpu_clocks gpu_persistence "
        "gpu_compute_mode gpu_mig gpu_versions gpu_gsp gpu_inforom gpu_in_use gpu_peermem gpu_p2p"
    ),
    "host": _words(
        "filesystem shm memory ecc numa swap cpu cpu_settings clock date kernel_log tasks limits disks disk_health "
        "services cgroups pcie_errors settings firmware thermal crashes scratch gpudirect leftovers"
    ),
    "network": _words(
        "rdma_ports rdma_rate rdma_errors rdma_gids rdma_verbs rdma_transport rdma_pcie rdma_firmware ethernet "
        "ethernet_errors bonding loopback default_route conntrack neighbours network_sysctls controller_name own_name "
        "resolver chrony nic_log"
    ),
    "torch": _words("matmul bandwidth collective"),
}
"""The checks by subject, in the order of reports; `--only` and `nodecheck.disable` also take the name of a group."""
GROUP_OF: Mapping[str, str] = {name: group for group, names in GROUPS.items() for name in names}
"""The group of each check. A check is the object `check` of the module `checks/<group>/<name>.py`."""
NAMES = tuple(GROUP_OF)


_NOT_IN: Mapping[str, tuple[str, ...]] = {
    "prolog": _words(
        "gpu_nvlink_errors gpu_pcie_errors gpu_inforom gpu_p2p numa swap cpu_settings clock tasks disk_health cgroups "
        "pcie_errors firmware thermal crashes scratch gpudirect rdma_transport rdma_pcie rdma_firmware ethernet_errors "
        "conntrack neighbours network_sysctls controller_name own_name resolver chrony matmul bandwidth collective"
    ),
    "epilog": _words(
        "gpu_inforom gpu_p2p numa swap cpu_settings clock disk_health pcie_errors firmware thermal crashes scratch "
        "gpudirect rdma_firmware network_sysctls own_name resolver chrony matmul bandwidth collective"
    ),
    "periodic": _words("gpu_inforom gpu_in_use matmul bandwidth collective"),
    "full": (),
}
"""Checks that a stage does not run; each check runs in all the others. A stage loads only the checks that it runs."""


def checks_of(name: str) -> tuple[str, ...]:
    """Return the checks of a group, or the check of this name. Nothing is loaded.

    Raises:
        CheckError: no check or group has this name; the message suggests the nearest.
    """
    if name in GROUPS:
        return GROUPS[name]
    if name in GROUP_OF:
        return (name,)
    import difflib  # noqa: PLC0415 (only a mistyped name needs it)

    near = difflib.get_close_matches(name, (*GROUPS, *NAMES), n=3, cutoff=0.5)
    there = f"there are: {', '.join(NAMES)}; and their groups: {', '.join(GROUPS)}"
    hint = f"did you mean {' or '.join(near)}?" if near else there
    raise CheckError(f"no check is called {name!r}: {hint}")


def require(name: str) -> None:
    """Make sure that a check has this name; it is not loaded.

    Raises:
        CheckError: none has, or it is the name of a group.
    """
    if name in GROUPS:
        raise CheckError(f"{name!r} is a group of checks, which has no options: name one of {', '.join(GROUPS[name])}")
    checks_of(name)


def get(name: str) -> Check:
    """Return one check.

    Raises:
        CheckError: raised as by `require`.
    """
    require(name)
    check: Check = importlib.import_module(f"slurm_robust.nodecheck.checks.{GROUP_OF[name]}.{name}").check
    return check


def preload(stage: str) -> None:
    """Load the checks of a stage, before it is known which of them the site has disabled."""
    for name in NAMES:
        if name not in _NOT_IN[stage]:
            get(name)


def select(stage: str, only: Iterable[str] = (), disable: Iterable[str] = ()) -> list[Check]:
    """Return the checks of a stage, or those named in `only`, without disabled ones; a name may be a group's.

    Raises:
        CheckError: a name in `only` or `disable` that does not exist.
    """
    if stage not in STAGES:
        raise CheckError(f"no stage is called {stage!r}: there are {', '.join(STAGES)}")
    named = {check for name in sorted(set(only)) for check in checks_of(name)}
    switched_off = {check for name in sorted(set(disable)) for check in checks_of(name)}
    if named:
        return [get(name) for name in NAMES if name in named - switched_off]
    left = [get(name) for name in NAMES if name not in switched_off.union(_NOT_IN[stage])]
    return [check for check in left if stage in check.stages]
