"""The site's choices: one YAML file, one typed object. Every default is here, with its unit.

The file is searched for in this order: an explicit path, `$SROBUST_CONFIG`, `/etc/slurm_robust/robust.yaml`; without
any, the defaults hold. The error for a wrong file names file, line and key, and nothing is started.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import yaml

from slurm_robust.config.file import find
from slurm_robust.config.http import HttpConfig
from slurm_robust.config.notify import NotifyConfig
from slurm_robust.config.repair import RepairConfig
from slurm_robust.config.report import ReportConfig
from slurm_robust.config.supervise import SuperviseConfig as SuperviseConfig  # noqa: PLC0414 (its users find it here)
from slurm_robust.config.yaml_lines import line_of
from slurm_robust.core.mode import Mode

RENAMED = {
    "nodecheck.leave_timeout_s": "nodecheck.permit_timeout_s",
    "nodecheck.alone": "nodecheck.without_daemon",
    "supervise.unreported_look_s": "supervise.quiet_capture_interval_s",
    "supervise.slowness_look_s": "supervise.slowness_interval_s",
}
"""Old key → new key. Old keys are still read, up to the next version."""

Positive = Annotated[float, msgspec.Meta(gt=0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class ConfigError(Exception):
    """The configuration cannot be used; the message names file, line and key."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class SlurmConfig(_Section, frozen=True):
    """How the package talks to Slurm."""

    backend: Literal["commands", "pyslurm"] = "commands"
    timeout_s: Positive = 10.0
    bin_dir: str = ""
    """Folder of scontrol, squeue, …; empty means PATH."""
    conf: str = ""
    """slurm.conf to use; empty means SLURM_CONF or Slurm's own default."""


class StandbyConfig(_Section, frozen=True):
    """Checked nodes that are held ready: `size` in each pool, 0 for none, `auto` by the failures in the journal."""

    size: Count | Literal["auto"] = 0
    start_size: Annotated[int, msgspec.Meta(ge=1)] = 1
    max_size: Annotated[int, msgspec.Meta(ge=1)] = 8
    window_days: Positive = 60.0
    min_node_days: Positive = 1000.0
    partitions: tuple[str, ...] = ()
    """Partitions with a pool; empty means every partition's nodes, one pool for each hardware class."""
    prefix: str = "srobust-standby"
    duration_days: Annotated[int, msgspec.Meta(ge=1, le=365)] = 30
    check_max_age_h: NonNegative = 24.0
    """A member is checked in full when it joins, after a boot, and this long after the last time; 0 checks none."""


class QuarantineConfig(_Section, frozen=True):
    """The settings for nodes that a job's claim names as suspects."""

    claims: Literal["quarantine", "drain"] = "quarantine"
    max_per_user_hour: Count = 3
    """The number of nodes that the claims of one user's jobs may take out of service within an hour."""
    claim_limit_s: Positive = 900.0
    """The longest time of a quarantine that rests on claims alone, even if it still waits for something."""
    recheck_timeout_s: Positive = 600.0
    soak_h: NonNegative = 0.0
    """A suspect that passed is checked and tested again and again for so long, while no job waits for nodes."""
    strikes_to_drain: Annotated[int, msgspec.Meta(ge=1)] = 3
    strike_window_days: Positive = 14.0
    recheck_command: tuple[str, ...] = ()
    """Command of the recheck job; empty means `srobust check --stage full`."""


class OwnJobsConfig(_Section, frozen=True):
    """The daemon's own jobs: rechecks, checks of standby nodes, tests of two nodes."""

    account: str = ""
    """Slurm's account that they run under; empty: the default one of the daemon's user."""
    qos: str = ""
    partition: str = ""
    """Nodes in this partition are checked in it; other nodes, or all if it is empty, in their first partition."""

    def partition_for(self, partitions: Sequence[str]) -> str:
        """Return the partition for a job on a node of these; empty if it has none."""
        return self.partition if self.partition in partitions else next(iter(partitions), "")

    def options(self, partitions: Sequence[str]) -> list[str]:
        """Return what sbatch or srun is told of account, QOS and partition."""
        asked = {"account": self.account, "qos": self.qos, "partition": self.partition_for(partitions)}
        return [f"--{name}={value}" for name, value in asked.items() if value]


class NodetestConfig(_Section, frozen=True):
    """Suspects and new standby nodes are tested together with another node, once they have passed their full check."""

    tests: tuple[Literal["in-node", "pairs", "alignment"], ...] = ("in-node", "pairs", "alignment")
    """Tests of `srobust test`; empty: the full check alone counts."""
    python: str = ""
    """The Python on the nodes that has PyTorch; empty means srobust's own."""
    budget_s: Annotated[float, msgspec.Meta(ge=20)] = 120.0
    """The time limit of all tests of two nodes together."""
    eud: bool = False
    """NVIDIA's Extended Utility Diagnostics too, where installed and where `budget_s` leaves them 1,800 s."""
    proof_wait_h: NonNegative = 4.0
    """How long a node stays in quarantine to wait for a test that it needs."""


class LemonsConfig(_Section, frozen=True):
    """Nodes that fail more often than chance explains: whether one a day is given to quarantine."""

    act: bool = False


class SeatConfig(_Section, frozen=True):
    """Reservations that hold a requeued job's nodes."""

    prefix: str = "srobust-seat"
    duration_min: Annotated[int, msgspec.Meta(ge=1)] = 10
    max_active: Count = 32
    max_per_user_day: Count = 20
    max_per_job_day: Count = 8
    start_timeout_s: Positive = 120.0
    """A seat whose job does not start in this time is deleted."""


class BreakerConfig(_Section, frozen=True):
    """Bounds on drains and quarantines: past them the daemon only alerts, until a person resets the breaker."""

    max_drains: Count = 8
    window_s: Positive = 3600.0
    max_partition_share: Share = 0.2


class DaemonConfig(_Section, frozen=True):
    """The control daemon."""

    state_dir: str = "/var/lib/slurm_robust"
    idle_interval_s: Positive = 1.0
    """The time between two calls to Slurm while nothing is under way."""
    claim_interval_s: Positive = 0.25
    """The time between two readings of the jobs while a claim is expected, if a reading takes at most a twentieth of
    this."""
    retention_days: Positive = 365.0
    protect: Literal["supervised", "all"] = "supervised"
    """The jobs to bring back after a node failure: those of `srobust run`, or every job that may be requeued."""
    http: HttpConfig = HttpConfig()


class CheckpointConfig(_Section, frozen=True):
    """The choice of the checkpoint from which a training resumes."""

    demote_after_failed_starts: Annotated[int, msgspec.Meta(ge=1)] = 2
    rollbacks: Annotated[int, msgspec.Meta(ge=0)] = 2


class LlmConfig(_Section, frozen=True):
    """A language model that `srobust diagnose --hint` may ask; off while `url` is empty."""

    url: str = ""
    """The base of an OpenAI-compatible endpoint, `http://localhost:11434/v1`; empty: nothing is ever asked."""
    model: str = ""
    """The model's name, as the endpoint calls it."""
    key_file: str = ""
    """The user's own file with the key, readable by no other user; empty: no key is sent. `~` is the user's home."""
    samples: Annotated[int, msgspec.Meta(ge=1, le=20)] = 5
    """The number of times that the same question is asked; the share of equal answers is the confidence."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 120.0
    """The time limit of all samples together."""
    page_bytes: Annotated[int, msgspec.Meta(ge=500, le=200_000)] = 12_000
    """The most bytes of the masked log that are sent."""
    review_dir: str = "~/.local/state/slurm_robust/review"
    """The folder in which proposed rules wait for a person."""


class LadderConfig(_Section, frozen=True):
    """The tests and restarts to try, one after the other, if no evidence names a node."""

    tests: tuple[Literal["in-node", "pairs", "alignment"], ...] = ("in-node", "pairs", "alignment")
    """The tests that may run; an empty list switches the ladder off."""
    budget_s: Positive = 120.0
    """The time limit of the tests of one rung."""
    replay_budget_s: Positive = 600.0
    tests_per_day: Count = 6
    settled_s: NonNegative = 3600.0
    over_evict: bool = False
    test_slow: bool = False


class DiagnoseConfig(_Section, frozen=True):
    """How to find the cause of a failure in a job's logs."""

    rules: tuple[str, ...] = ()
    """Files with rules of the site's own, which are tried before the package's."""
    llm: LlmConfig = LlmConfig()


class NodecheckConfig(_Section, frozen=True):
    """Node self-checks."""

    enabled: bool = True
    disable: tuple[str, ...] = ()
    """Names of checks that are switched off."""
    deadline_s: Positive = 5.0
    """The time limit of each check that does not set its own."""
    kmsg: str = "/dev/kmsg"
    """Kernel log; `%n` stands for the node's name."""
    root: str = "/"
    """The folder that has /proc and /sys; another one for tests and drills. `%n` as above."""
    cache_dir: str = "/run/slurm_robust"
    """The folder that keeps verdicts and baselines between runs. `%n` as above."""
    fresh_s: NonNegative = 600.0
    """The time for which a prolog reuses the verdict that the node is fit; 0: each prolog runs all of its checks."""
    permit_timeout_s: Positive = 3.0
    """The time that the prolog may take to read its drain permit and to drain."""
    without_daemon: Literal["report", "drain"] = "report"
    """Without srobustd on the site: whether to report an unfit node, or drain it within the bounds of `breaker`."""
    nvml_library: str = ""
    """The libnvidia-ml.so.1 to load; empty takes the loader's. `%n` as above."""
    gpu_profiles: dict[str, dict[str, Any]] = {}
    """The site's expectations of each GPU model: `{product name: {key: value}}`."""
    options: dict[str, dict[str, Any]] = {}
    """Thresholds of single checks: `{check: {option: value}}`."""


class Config(_Section, frozen=True):
    """The whole of `robust.yaml`."""

    mode: Mode = Mode.OBSERVE
    cluster: str = ""
    """Empty means what slurm.conf says."""
    slurm: SlurmConfig = SlurmConfig()
    supervise: SuperviseConfig = SuperviseConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    ladder: LadderConfig = LadderConfig()
    diagnose: DiagnoseConfig = DiagnoseConfig()
    nodecheck: NodecheckConfig = NodecheckConfig()
    standby: StandbyConfig = StandbyConfig()
    quarantine: QuarantineConfig = QuarantineConfig()
    own_jobs: OwnJobsConfig = OwnJobsConfig()
    nodetest: NodetestConfig = NodetestConfig()
    lemons: LemonsConfig = LemonsConfig()
    repair: RepairConfig = RepairConfig()
    seat: SeatConfig = SeatConfig()
    breaker: BreakerConfig = BreakerConfig()
    daemon: DaemonConfig = DaemonConfig()
    notify: NotifyConfig = NotifyConfig()
    report: ReportConfig = ReportConfig()


def load(explicit: str | os.PathLike[str] | None = None) -> Config:
    """Read the site's configuration.

    Raises:
        ConfigError: no such file, not YAML, an unknown key or a value out of range; says file, line and key.
    """
    path = find(explicit)
    if path is None:
        return Config()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return parse(text, str(path))


def parse(text: str, name: str = "robust.yaml") -> Config:
    """Read configuration text; `name` is what errors call it.

    Raises:
        ConfigError: as `load`.
    """
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark is not None else name
        raise ConfigError(f"{where}: not YAML: {getattr(error, 'problem', error)}") from None
    if raw is None:
        return Config()
    old_names = _rename(raw, text, name)
    try:
        return msgspec.convert(_without_empty(raw, Config), Config)
    except msgspec.ValidationError as error:
        message = str(error)
        unknown = re.search(r"unknown field `([^`]+)`", message)
        at = re.search(r" - at `\$([^`]*)`", message)
        keys = re.findall(r"\.?([A-Za-z_][\w-]*|\[\d+\])", at[1]) if at else []
        if unknown:
            keys.append(unknown[1])
        what = re.sub(r" - at `[^`]*`", "", message)
        dotted = ".".join(keys) or "(top level)"
        if dotted in old_names:
            dotted = old_names[dotted]
            keys = dotted.split(".")
        allowed = _allowed(Config, keys)
        there_are = f" (there are: {', '.join(allowed)})" if allowed else ""
        raise ConfigError(f"{name}:{line_of(text, keys)}: {dotted}: {what}{there_are}") from None


def _allowed(kind: Any, keys: Sequence[str]) -> list[str]:
    """Return the texts that the value at these keys may be; empty if it may be any."""
    for key in keys:
        members = [kind, *get_args(kind)]
        if key.startswith("["):
            kind = next((inner for inner in get_args(kind) if inner is not ...), None)
            continue
        structs = [k for k in members if isinstance(k, type) and issubclass(k, msgspec.Struct)]
        fields = {f.encode_name: f.type for s in structs for f in msgspec.structs.fields(s)}
        kind = fields.get(key)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [str(member.value) for member in kind]
    parts = (kind,) if get_origin(kind) is Literal else get_args(kind)
    named = [str(value) for part in parts if get_origin(part) is Literal for value in get_args(part)]
    number = any(part is int or int in get_args(part) for part in parts)
    return [*named, "a number"] if named and number else named


def old_keys(explicit: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Return a sentence for each old key in the file that `load` reads; none if the file cannot be read."""
    path = find(explicit)
    try:
        text = path.read_text(encoding="utf-8") if path is not None else ""
        names = _rename(yaml.safe_load(text), text, str(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ConfigError):
        return ()
    return tuple(
        f"{path}: {old} is now called {new}; the next version does not read {old}" for new, old in names.items()
    )


def _rename(raw: Any, text: str, name: str) -> dict[str, str]:
    """Give old keys their new names, in place. Return the old names of the keys that were renamed, by their new names.

    Raises:
        ConfigError: a key is there under both names.
    """
    renamed = {}
    for old, new in RENAMED.items():
        (section, old_key), new_key = old.split("."), new.partition(".")[2]
        values = raw.get(section) if isinstance(raw, dict) else None
        if not isinstance(values, dict) or old_key not in values:
            continue
        if new_key in values:
            line = line_of(text, [section, old_key])
            raise ConfigError(f"{name}:{line}: {old}: given beside {new}, its new name; remove {old}")
        values[new_key] = values.pop(old_key)
        renamed[new] = old
    return renamed


def _without_empty(raw: Any, kind: type[msgspec.Struct]) -> Any:
    """Return the YAML without empty sections (every key commented out), which YAML reads as null."""
    if not isinstance(raw, dict):
        return raw
    kinds = {f.encode_name: f.type for f in msgspec.structs.fields(kind)}
    sections = {key: t for key, t in kinds.items() if isinstance(t, type) and issubclass(t, msgspec.Struct)}
    return {
        key: _without_empty(value, sections[key]) if key in sections else value
        for key, value in raw.items()
        if not (value is None and key in sections)
    }
