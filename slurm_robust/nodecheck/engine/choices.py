"""Reads the site's choices for the node checks, for scripts that count milliseconds.

Loading YAML and the typed configuration takes longer than most checks. So the result is kept in `nodecheck.cache_dir`,
with the identity of the file, and read from there as long as the file is the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slurm_robust.nodecheck import state_folder
from slurm_robust.nodecheck.engine import check_state, isolate
from slurm_robust.nodecheck.engine.context import Context, job_gpus_of, job_instances_of, job_of

if TYPE_CHECKING:
    from slurm_robust.config.site import Config

NAME = "choices"
_READ_S = 5.0


class ConfigRejected(Exception):  # noqa: N818 (the site's file is wrong; the message says where)
    """The configuration cannot be used, or is not trusted."""


class Choices(NamedTuple):
    """The part of the configuration that decides which checks run; names and units are `NodecheckConfig`'s."""

    act: bool
    enabled: bool
    disable: tuple[str, ...]
    deadline_s: float
    kmsg: str
    root: str
    cache_dir: str
    fresh_s: float
    options: Mapping[str, Mapping[str, Any]]
    nvml_library: str = ""
    gpu_profiles: Mapping[str, Mapping[str, Any]] = {}

    def context(self, node: str, stage: str, env: Mapping[str, str]) -> Context:
        """Return the context of probes, with `%n` filled in."""
        return Context(
            node=node,
            stage=stage,
            root=Path(self.root.replace("%n", node)),
            kmsg=Path(self.kmsg.replace("%n", node)),
            cache_dir=Path(self.cache_dir.replace("%n", node)),
            job_id=job_of(env),
            job_gpus=job_gpus_of(env),
            job_instances=job_instances_of(env),
            nvml_library=self.nvml_library.replace("%n", node),
            gpu_profiles=self.gpu_profiles,
        )


def of(config: Config) -> Choices:
    """Return the choices of a whole configuration.

    Raises:
        CheckError: `gpu_profiles` has a key or a value that no profile has.
    """
    part = config.nodecheck
    if part.gpu_profiles:
        from slurm_robust.nodecheck.engine import gpu_profiles  # noqa: PLC0415 (only a site with its own needs it)

        gpu_profiles.validate(part.gpu_profiles)
    same = {name: getattr(part, name) for name in Choices._fields if name not in ("act", "disable")}
    return Choices(act=config.mode.value == "act", disable=tuple(part.disable), **same)


def load(path: str, node: str, meanwhile: Callable[[], None] = lambda: None) -> Choices:
    """Return the choices of this file, kept or read anew; the defaults if there is no file at the usual place.

    `meanwhile` may be called, once or more, while a process beside this one reads the file.

    Raises:
        ConfigRejected: the file cannot be used, or, for root, others may write it; says file, line and key.
        CheckError: raised as by `of`.
    """
    distrust(path)
    identity = state_folder.identity(path)
    try:
        folder = Path(state_folder.cache_dir_of(path, node))
        kept = check_state.load(folder, NAME)
        if (kept.get("of"), kept.get("identity")) == (f"{state_folder.FORMAT}\t{path}", identity):
            return _restored(kept["choices"])
    except (OSError, state_folder.UntrustedState, TypeError, KeyError):
        pass
    made = _read_beside(path, meanwhile) or of(read(path))
    kept = {"of": f"{state_folder.FORMAT}\t{path}", "identity": identity, "choices": made._asdict()}
    check_state.save(Path(made.cache_dir.replace("%n", node)), NAME, kept)
    return made


def _read_beside(path: str, meanwhile: Callable[[], None]) -> Choices | None:
    """Return the choices, read by another process, since that takes as long as this one's other work.

    Returns:
        None if that process has no choices to give: reading the file here tells why.
    """
    task = isolate.Task(lambda: of(read(path))._asdict(), _READ_S)
    outcome = isolate.run_all({NAME: task}, lambda _: meanwhile())[NAME]
    return None if outcome.error else _restored(outcome.value)


def _restored(kept: Mapping[str, Any]) -> Choices:
    """Choices that have been through JSON."""
    return Choices(**{**kept, "disable": tuple(kept["disable"])})


def read(path: str) -> Config:
    """Return the whole configuration.

    Raises:
        ConfigRejected: as `load`.
    """
    need_packages()
    from slurm_robust.config.site import Config, ConfigError, parse  # noqa: PLC0415 (only where nothing is kept)

    if path == state_folder.DEFAULT_CONFIG and state_folder.identity(path) == "none":
        return Config()
    try:
        with open(path, "rb") as file:
            _own(path, os.fstat(file.fileno()))
            text = file.read().decode("utf-8")
        return parse(text, path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigRejected(f"{path}: cannot be read: {error}") from error
    except ConfigError as error:
        raise ConfigRejected(str(error)) from None


def distrust(path: str) -> None:
    """Refuse, as root, a configuration that others may write or replace: it names files that root then uses.

    Raises:
        ConfigRejected: it is not root's own, or a folder on the way to it is not.
    """
    if os.geteuid() != 0:
        return
    try:
        place = state_folder.foreign_place(path, state_folder.is_ours)
    except OSError:
        return  # it does not exist: reading it reports that
    if place:
        below = "" if place == path else f", and {path} lies there"
        raise ConfigRejected(f"{place}: others may write it{below}; chown root:root and chmod go-w it")


def _own(path: str, info: os.stat_result) -> None:
    if os.geteuid() == 0 and (info.st_uid != 0 or state_folder.others_may_write(info)):
        raise ConfigRejected(f"{path}: others may write it; chown root:root and chmod go-w it")


def need_packages() -> None:
    """Make installed packages importable: the scripts start Python without them, since the search is slow."""
    if not sys.flags.no_site:
        return
    home = os.path.dirname(os.path.dirname(sys.executable))
    folder = f"{home}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    if os.path.isdir(f"{folder}/msgspec") and _holds_all_packages(f"{home}/pyvenv.cfg"):
        if folder not in sys.path:
            sys.path.append(folder)
        return
    import site  # noqa: PLC0415 (slow, and complete)

    site.main()


def _holds_all_packages(cfg: str) -> bool:
    """Tell whether this file is of a virtual environment that shares none of the system's packages."""
    try:
        with open(cfg, encoding="utf-8", errors="replace") as file:
            keys = dict(line.replace(" ", "").strip().lower().split("=", 1) for line in file if "=" in line)
    except OSError:
        return False
    return keys.get("include-system-site-packages") == "false"
