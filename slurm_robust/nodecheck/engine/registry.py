"""The checks by name: what each reads, what it costs, and how its answer comes about."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_robust.nodecheck.engine.context import STAGES, Context
from slurm_robust.nodecheck.engine.finding import Finding

Facts = dict[str, Any]
Options = Mapping[str, Any]


class CheckError(ValueError):
    """A check or an option that does not exist, or a value of the wrong type; the message says which."""


@dataclass(frozen=True)
class Option:
    """A check's setting, `nodecheck.options.<check>.<name>` in robust.yaml.

    Attributes:
        default: Value where the site says nothing; its type is the type that is accepted.
        meaning: What it does, with the unit.
        source: Where the default comes from.
    """

    default: Any
    meaning: str
    source: str


@dataclass(frozen=True)
class Check:
    """A check: a probe that reads, and a pure function that judges.

    Attributes:
        name: A word; what `--only` and `nodecheck.disable` take, beside the names of groups.
        question: What it asks, in a sentence.
        reads: The files and calls it reads.
        cost: What one look costs, in words.
        stages: Where it runs.
        probe: Reads facts (plain JSON values). Runs in a process of its own, may block, fail or crash.
        judge: Facts and options to a finding; pure.
        remember: Facts and options to the state kept for the next look, or None to keep what is there; pure.
        deadline_s: The check's own deadline, None for `nodecheck.deadline_s`.
        lane: Probes of one lane share a process and what they read (`Context.once`); empty is a process of its own, for
            whatever may block in the kernel.
        again: Looked at in each prolog also under a fresh verdict: it can change within minutes, and nothing tells.
        log_words: A fresh verdict holds only while no new record of the kernel log has one of these words.
        watch: Facts and options to what else must not change while a fresh verdict holds, as `watches.WATCHES` and
            `watches.ASKED` take it; pure.
        instead: What to watch where the look that leaves a fresh verdict is of a stage without this check; empty has
            the check itself made.
        strikes: Looks of the periodic check in a row that must fail before it counts; until then it warns.
        window_s: How far apart two of these looks may lie.
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
    deadline_s: float | None = None
    lane: str = ""
    again: bool = False
    log_words: tuple[str, ...] = ()
    watch: Callable[[Facts, Options], list[tuple[str, ...]]] | None = None
    instead: tuple[tuple[str, ...], ...] = ()
    strikes: int = 1
    window_s: float = 1800.0

    def every_option(self) -> dict[str, Option]:
        """The check's own options, and those that every check of the periodic stage has."""
        if "periodic" not in self.stages:
            return dict(self.options)
        return {
            **self.options,
            "strikes": Option(self.strikes, "periodic looks in a row that must fail before it counts", "ours"),
            "window_s": Option(self.window_s, "seconds that two of these looks may lie apart", "ours"),
        }

    def settings(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults with the site's choices laid over them.

        Raises:
            CheckError: an option that this check does not have, or a value of the wrong type.
        """
        settings = {name: option.default for name, option in self.every_option().items()}
        for name, value in chosen.items():
            if name not in settings:
                known = ", ".join(settings) or "none"
                raise CheckError(f"nodecheck.options.{self.name}.{name}: no such option (it has: {known})")
            settings[name] = self._typed(name, value, settings[name])
        return settings

    def _typed(self, name: str, value: Any, default: Any) -> Any:
        if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if type(value) is not type(default):
            raise CheckError(
                f"nodecheck.options.{self.name}.{name}: {value!r} is no {type(default).__name__} "
                f"(the default is {default!r})"
            )
        return value


GROUPS: Mapping[str, tuple[str, ...]] = {
    "gpu": (
        "xid",
        "gpu_count",
        "gpu_driver",
        "gpu_identity",
        "gpu_recovery",
        "gpu_ecc",
        "gpu_rows",
        "gpu_pages",
        "gpu_nvlink",
        "gpu_nvlink_errors",
        "gpu_fabric",
        "gpu_pcie",
        "gpu_pcie_errors",
        "gpu_throttle",
        "gpu_temperature",
        "gpu_power",
        "gpu_clocks",
        "gpu_persistence",
        "gpu_compute_mode",
        "gpu_mig",
        "gpu_versions",
        "gpu_gsp",
        "gpu_inforom",
        "gpu_in_use",
        "gpu_peermem",
        "gpu_p2p",
    ),
    "host": (
        "filesystem",
        "shm",
        "memory",
        "ecc",
        "numa",
        "swap",
        "cpu",
        "cpu_settings",
        "clock",
        "date",
        "kernel_log",
        "tasks",
        "limits",
        "disks",
        "disk_health",
        "services",
        "cgroups",
        "pcie_errors",
        "settings",
        "firmware",
        "thermal",
        "crashes",
        "scratch",
        "gpudirect",
        "leftovers",
    ),
    "network": (
        "rdma_ports",
        "rdma_rate",
        "rdma_errors",
        "rdma_gids",
        "rdma_verbs",
        "rdma_transport",
        "rdma_pcie",
        "rdma_firmware",
        "ethernet",
        "ethernet_errors",
        "bonding",
        "loopback",
        "default_route",
        "conntrack",
        "neighbours",
        "network_sysctls",
        "controller_name",
        "own_name",
        "resolver",
        "chrony",
        "nic_log",
    ),
    "torch": ("matmul", "bandwidth", "collective"),
}
"""The checks by what they look at; the name of a group stands for all of them, in `--only` and `nodecheck.disable`."""
GROUP_OF: Mapping[str, str] = {name: group for group, names in GROUPS.items() for name in names}
"""The folder of `checks/` in which a check stands."""
NAMES = tuple(GROUP_OF)
"""Every check, in the order of reports. Each is the object `check` of the module of that name in `checks/<group>/`."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NOT_IN: Mapping[str, frozenset[str]] = {
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
    "full": frozenset(),
}
"""What a stage does not run, as the checks' own `stages` say: known here, so that a stage loads only what it runs."""


def checks_of(name: str) -> tuple[str, ...]:
    """The names of the checks that a name means: all of a group's, or the one itself. Nothing is loaded.

    Raises:
        CheckError: neither a check nor a group is called so; the message offers the nearest.
    """
    if name in GROUPS:
        return GROUPS[name]
    if name in GROUP_OF:
        return (name,)
    import difflib  # noqa: PLC0415 (only a mistyped name pays for it)

    near = difflib.get_close_matches(name, (*GROUPS, *NAMES), n=3, cutoff=0.5)
    there = f"there are: {', '.join(NAMES)}; and their groups: {', '.join(GROUPS)}"
    hint = f"did you mean {' or '.join(near)}?" if near else there
    raise CheckError(f"no check is called {name!r}: {hint}")


def require(name: str) -> None:
    """Nothing, where there is a check of that name; it is not loaded.

    Raises:
        CheckError: there is none, or it is a group's name.
    """
    if name in GROUPS:
        raise CheckError(f"{name!r} is a group of checks, which has no options: name one of {', '.join(GROUPS[name])}")
    checks_of(name)


def get(name: str) -> Check:
    """One check.

    Raises:
        CheckError: as `require`.
    """
    require(name)
    check: Check = importlib.import_module(f"slurm_robust.nodecheck.checks.{GROUP_OF[name]}.{name}").check
    return check


def select(stage: str, only: Iterable[str] = (), disable: Iterable[str] = ()) -> list[Check]:
    """The checks of a stage, or exactly those named in `only`, without the disabled ones; each name may be a group's.

    Raises:
        CheckError: a name in `only` or `disable` that does not exist.
    """
    if stage not in STAGES:
        raise CheckError(f"no stage is called {stage!r}: there are {', '.join(STAGES)}")
    named = {check for name in sorted(set(only)) for check in checks_of(name)}
    switched_off = {check for name in sorted(set(disable)) for check in checks_of(name)}
    if named:
        return [get(name) for name in NAMES if name in named - switched_off]
    left = [get(name) for name in NAMES if name not in switched_off | _NOT_IN[stage]]
    return [check for check in left if stage in check.stages]
