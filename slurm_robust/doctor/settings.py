"""Judges slurm.conf as the controller runs it by what requeues, prologs and standby nodes need. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_robust.config.site import Config
from slurm_robust.core.model import EXIT_REQUEUE_WANTED, EXIT_STOPPED_FOR_GOOD, EXIT_USAGE
from slurm_robust.doctor.advice import Advice, Severity

Settings = Mapping[str, str]

SCRIPT_ENDS_S = 21
"""Prolog and epilog end by themselves after so long (`SROBUST_TIMEOUT_S` and a second)."""
REQUEUE_DELAY_S, LEAST_REQUEUE_DELAY_S = 10, 3
"""The `requeue_delay` that is advised, and the least with which srobustd, which reads Slurm once a second at least, has
the job pointed at its seat in time where Slurm itself has requeued it."""
_NOTHING = ("", "(null)", "none", "n/a")
_NO_LIMIT = 65533
"""The least value by which Slurm's 16-bit numbers mean "not set" or "no limit"."""


def judge(settings: Settings, config: Config) -> list[Advice]:
    """Findings about slurm.conf, in the order of the documentation."""
    version = version_of(settings)
    return [
        _version(settings, version),
        _script(settings, "Prolog", "srobust-prolog", "unfit nodes are found only after jobs have started on them"),
        _script(settings, "Epilog", "srobust-epilog", "a fault that a job leaves is found only by the next job"),
        _prolog_flags(settings),
        *_timeouts(settings),
        _held(settings),
        *_health_check(settings, config),
        *_requeue(settings),
        *_exit_codes(settings),
        *_times(settings, config),
        _suspend(settings, config, version),
        _reboot(settings, config),
        *_gres(settings, version),
        _accounting(settings),
        *_newer(settings, version),
    ]


def version_of(settings: Settings) -> tuple[int, int]:
    """Return Slurm's major version, `(22, 5)`; zeros if it is unknown."""
    match = re.match(r"(\d{1,3})\.(\d{1,3})", value(settings, "SLURM_VERSION"))
    return (int(match[1]), int(match[2])) if match else (0, 0)


def value(settings: Settings, key: str) -> str:
    """Return the text of a setting, empty if Slurm has none; the key is in upper or lower case."""
    wanted = key.lower()
    text = next((text for name, text in settings.items() if name.lower() == wanted), "").strip()
    return "" if text.lower() in _NOTHING else text


def words(settings: Settings, key: str) -> set[str]:
    """Return a list's items in lower case, without the part behind `=`."""
    return {part.split("=")[0].strip().lower() for part in value(settings, key).split(",") if part.strip()}


def seconds(settings: Settings, key: str) -> int | None:
    """Return the seconds in `30 sec`, `5 min` or `65534`; None if there is no number or Slurm means no limit."""
    match = re.match(r"(\d{1,9})\s*(sec|min)?", value(settings, key))
    if match is None or int(match[1]) >= _NO_LIMIT:
        return None
    return int(match[1]) * (60 if match[2] == "min" else 1)


def _ok(about: str, sentence: str) -> Advice:
    return Advice(Severity.OK, about, sentence)


def _with(settings: Settings, key: str, item: str) -> str:
    """Return the line of slurm.conf with one more item in a list."""
    return f"{key}={','.join(text for text in (value(settings, key), item) if text)}"


def _version(settings: Settings, version: tuple[int, int]) -> Advice:
    text = value(settings, "SLURM_VERSION")
    if version == (0, 0):
        return Advice(Severity.UNKNOWN, "SLURM_VERSION", f"Slurm's version is not known from {text!r}")
    if version < (22, 5):
        return Advice(Severity.WRONG, "SLURM_VERSION", f"Slurm {text} is older than 22.05, the oldest tested version")
    return _ok("SLURM_VERSION", f"Slurm {text}")


def _script(settings: Settings, key: str, name: str, loss: str) -> Advice:
    path = value(settings, key)
    folder = "epilog" if name.endswith("epilog") else "prolog"
    fix = f"{key}=/usr/share/slurm_robust/{folder}/{name}"
    if not path:
        return Advice(Severity.ADVICE, key, f"not set: {loss}", fix)
    if path.endswith("*"):
        sentence = f"{path} runs all its scripts, the last name first: where one fails, the later ones do not run"
        return Advice(Severity.ADVICE, key, sentence)
    return _ok(key, path)


def _prolog_flags(settings: Settings) -> Advice:
    if not value(settings, "Prolog"):
        return _ok("PrologFlags", "no Prolog is set, so they do not matter")
    missing = [flag for flag in ("Alloc", "DeferBatch") if flag.lower() not in words(settings, "PrologFlags")]
    if not missing:
        return _ok("PrologFlags", value(settings, "PrologFlags"))
    others = [f for f in value(settings, "PrologFlags").split(",") if f.strip()]
    lines = {
        "Alloc": "without Alloc a node's prolog runs at its first step: too late, since the job has begun",
        "DeferBatch": "without DeferBatch the batch script begins when the first node's prolog has ended",
    }
    sentence = "; ".join(lines[flag] for flag in missing)
    return Advice(Severity.WRONG, "PrologFlags", sentence, f"PrologFlags={','.join([*missing, *others])}")


def _script_limits(settings: Settings) -> dict[str, int | None]:
    """Return the time limits of prolog and epilog, seconds, by key. Slurm 25.05 and later shows two if they differ."""
    apart = [key for key in ("PrologTimeout", "EpilogTimeout") if value(settings, key)]
    return {key: seconds(settings, key) for key in apart or ["PrologEpilogTimeout"]}


def _timeouts(settings: Settings) -> list[Advice]:
    found = []
    for key, limit_s in _script_limits(settings).items():
        which = {"PrologTimeout": "prolog", "EpilogTimeout": "epilog"}.get(key, "prolog or epilog")
        fix = f"{key}=60"
        if limit_s is None:
            sentence = f"no limit: a {which} that hangs holds its node for ever"
            found.append(Advice(Severity.ADVICE, key, sentence.replace("a epilog", "an epilog"), fix))
        elif limit_s <= SCRIPT_ENDS_S:
            sentence = f"{limit_s} s: Slurm kills our scripts before they end by themselves, and drains the node"
            found.append(Advice(Severity.WRONG, key, sentence, fix))
        else:
            found.append(_ok(key, f"{limit_s} s"))
    return found


def _held(settings: Settings) -> Advice:
    if "nohold_on_prolog_fail" in words(settings, "SchedulerParameters"):
        return _ok("SchedulerParameters", "nohold_on_prolog_fail: a job whose prolog failed runs elsewhere")
    sentence = "without nohold_on_prolog_fail a job whose prolog failed is held until a person releases it"
    fix = _with(settings, "SchedulerParameters", "nohold_on_prolog_fail")
    level = Severity.WRONG if value(settings, "Prolog") else Severity.ADVICE
    return Advice(level, "SchedulerParameters", sentence, fix)


def _health_check(settings: Settings, config: Config) -> list[Advice]:
    program = value(settings, "HealthCheckProgram")
    if not program:
        sentence = "not set: faults of idle nodes are found only by the next job, and each prolog runs all checks"
        fix = "HealthCheckProgram=/usr/share/slurm_robust/prolog/srobust-healthcheck"
        return [Advice(Severity.ADVICE, "HealthCheckProgram", sentence, fix)]
    found = [_ok("HealthCheckProgram", program)]
    every_s = seconds(settings, "HealthCheckInterval") or 0
    fresh_s = config.nodecheck.fresh_s
    if not every_s:
        found.append(Advice(Severity.WRONG, "HealthCheckInterval", "0: it never runs", "HealthCheckInterval=300"))
    elif fresh_s and every_s >= fresh_s:
        sentence = (
            f"{every_s} s, and nodecheck.fresh_s is {fresh_s:g}: for part of the time prologs have no fresh "
            "verdict, and run all checks"
        )
        found.append(Advice(Severity.ADVICE, "HealthCheckInterval", sentence, "HealthCheckInterval=300"))
    else:
        found.append(_ok("HealthCheckInterval", f"{every_s} s"))
    states = words(settings, "HealthCheckNodeState")
    if "any" not in states:
        sentence = f"{value(settings, 'HealthCheckNodeState') or 'not set'}: nodes in other states are not checked"
        found.append(Advice(Severity.ADVICE, "HealthCheckNodeState", sentence, "HealthCheckNodeState=ANY,CYCLE"))
    elif "cycle" not in states:
        sentence = "without CYCLE all nodes run their checks in the same second, and load file servers at once"
        found.append(Advice(Severity.ADVICE, "HealthCheckNodeState", sentence, "HealthCheckNodeState=ANY,CYCLE"))
    else:
        found.append(_ok("HealthCheckNodeState", value(settings, "HealthCheckNodeState")))
    return found


def _requeue(settings: Settings) -> list[Advice]:
    found = [_ok("JobRequeue", "jobs may be requeued")]
    if value(settings, "JobRequeue") == "0":
        sentence = "0: only jobs that ask for it (`sbatch --requeue`) can be requeued"
        found = [Advice(Severity.ADVICE, "JobRequeue", sentence, "JobRequeue=1")]
    tracks = value(settings, "ProctrackType")
    if tracks in ("proctrack/linuxproc", "proctrack/pgid"):
        sentence = f"{tracks}: a process whose parent has ended outlives its job, and disturbs the job's next run"
        found.append(Advice(Severity.ADVICE, "ProctrackType", sentence, "ProctrackType=proctrack/cgroup"))
    return found


def codes(text: str) -> set[int]:
    """Return a list of exit codes as slurm.conf takes it, `1,5-7`; other parts are ignored."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,3})(?:-(\d{1,3}))?\s*", part)
        if match:
            found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


_OURS = {
    EXIT_USAGE: ("wrong arguments", "the job fails the same way, for ever"),
    EXIT_REQUEUE_WANTED: ("a requeue was wanted and did not come", ""),
    EXIT_STOPPED_FOR_GOOD: ("three attempts without a new step", "a loop that we have just stopped begins again"),
}


def _exit_codes(settings: Settings) -> list[Advice]:
    found = []
    requeued, held = codes(value(settings, "RequeueExit")), codes(value(settings, "RequeueExitHold"))
    for code, (meaning, harm) in _OURS.items():
        if code in requeued and harm:
            sentence = f"has {code} ({meaning}): {harm}"
            found.append(Advice(Severity.WRONG, "RequeueExit", sentence, f"RequeueExit={_without(requeued, code)}"))
        if code in held:
            sentence = f"has {code} ({meaning}): such a job is held until a person releases it"
            found.append(Advice(Severity.WRONG, "RequeueExitHold", sentence, f"RequeueExitHold={_without(held, code)}"))
    return found or [_ok("RequeueExit", "contains no exit code of ours that it should not")]


def _without(codes: set[int], code: int) -> str:
    return ",".join(str(c) for c in sorted(codes - {code}))


def _times(settings: Settings, config: Config) -> list[Advice]:
    found = []
    kill_s = seconds(settings, "KillWait") or 0
    stuck_s = seconds(settings, "UnkillableStepTimeout") or 0
    limits_s = [limit_s or 0 for limit_s in _script_limits(settings).values()]
    scripts_s = sum(limits_s) if len(limits_s) > 1 else 2 * limits_s[0]
    whole_s = kill_s + stuck_s + scripts_s
    seat_s = config.seat.duration_min * 60
    if whole_s > seat_s:
        sentence = (
            f"KillWait {kill_s} s, UnkillableStepTimeout {stuck_s} s and a prolog and an epilog ({scripts_s} s) can "
            f"take longer than a seat is kept (seat.duration_min: {config.seat.duration_min})"
        )
        fix = f"robust.yaml: seat: {{duration_min: {whole_s // 60 + 1}}}"
        found.append(Advice(Severity.WRONG, "UnkillableStepTimeout", sentence, fix))
    else:
        found.append(_ok("UnkillableStepTimeout", f"a job ends within {whole_s} s at most, a seat is kept {seat_s} s"))
    message_s = seconds(settings, "MessageTimeout") or 10
    # The rule is slurm.conf(5)'s, at UnkillableStepTimeout.
    if 0 < stuck_s < 5 * message_s:
        sentence = f"UnkillableStepTimeout {stuck_s} s is less than five times MessageTimeout ({message_s} s)"
        found.append(Advice(Severity.ADVICE, "MessageTimeout", sentence, f"UnkillableStepTimeout={5 * message_s}"))
    silent_s = seconds(settings, "SlurmdTimeout")
    if not silent_s:
        sentence = "0: a dead node keeps its job for ever"
        found.append(Advice(Severity.WRONG, "SlurmdTimeout", sentence, "SlurmdTimeout=60"))
    elif silent_s > 300:
        sentence = f"{silent_s} s: a dead node keeps its job for so long"
        found.append(Advice(Severity.ADVICE, "SlurmdTimeout", sentence, "SlurmdTimeout=60"))
    else:
        found.append(_ok("SlurmdTimeout", f"{silent_s} s"))
    return found


def _suspend(settings: Settings, config: Config, version: tuple[int, int]) -> Advice:
    about = "SuspendExcStates"
    if not value(settings, "SuspendProgram") or not config.standby.size:
        return _ok(about, "no power saving, or no standby nodes: it does not matter")
    if "reserved" in words(settings, about):
        return _ok(about, value(settings, about))
    sentence = "idle standby nodes are powered down, and jobs wait for their boot"
    if version < (23, 2):
        return Advice(Severity.WRONG, "SuspendExcNodes", sentence, "SuspendExcNodes=<the standby nodes>")
    others = [state for state in value(settings, about).split(",") if state]
    return Advice(Severity.WRONG, about, sentence, f"SuspendExcStates={','.join([*others, 'RESERVED'])}")


def _reboot(settings: Settings, config: Config) -> Advice:
    about, repair = "RebootProgram", config.repair
    if not repair.enabled or repair.command or "reboot" not in repair.remedies:
        return _ok(about, "no node is rebooted by Slurm to repair it: it does not matter")
    if not value(settings, about):
        sentence = "not set, and repair.remedies has reboot: no node is repaired by a reboot"
        return Advice(Severity.WRONG, about, sentence, "RebootProgram=/sbin/reboot")
    resume_s = seconds(settings, "ResumeTimeout") or 0
    if resume_s and resume_s > repair.timeout_s:
        sentence = f"a boot may take {resume_s} s (ResumeTimeout), and a repair gives up after {repair.timeout_s:g}"
        fix = f"robust.yaml: repair: {{timeout_s: {2 * resume_s}}}"
        return Advice(Severity.ADVICE, "ResumeTimeout", sentence, fix)
    return _ok(about, value(settings, about))


def _gres(settings: Settings, version: tuple[int, int]) -> list[Advice]:
    if version != (22, 5) or not value(settings, "GresTypes"):
        return []
    sentence = (
        "when a node dies under a job that is being requeued, Slurm 22.05 can start the job without its GRES (`Invalid "
        "generic resource (gres) specification`) and count the GRES of its nodes as used for ever; `srobust status` "
        "names such nodes, and `scontrol reconfigure` repairs them"
    )
    fix = "upgrade Slurm; until then, when it happens: scontrol reconfigure"
    return [Advice(Severity.ADVICE, "GresTypes", sentence, fix)]


def _accounting(settings: Settings) -> Advice:
    kind = value(settings, "AccountingStorageType")
    if not kind or kind.endswith("/none"):
        sentence = (
            "none: `srobust report` knows supervised jobs alone, and `srobust diagnose JOBID` no job that slurmctld "
            "has forgotten; Slurm's slurmdbd gives both"
        )
        return Advice(Severity.ADVICE, "AccountingStorageType", sentence)
    if "gpu" in words(settings, "GresTypes") and "gres/gpu" not in words(settings, "AccountingStorageTRES"):
        sentence = (
            "without gres/gpu a report cannot count the GPU hours of jobs that are not supervised; slurmctld reads "
            "this key at its start only: restart it then (systemctl restart slurmctld)"
        )
        fix = _with(settings, "AccountingStorageTRES", "gres/gpu")
        return Advice(Severity.ADVICE, "AccountingStorageTRES", sentence, fix)
    return _ok("AccountingStorageType", kind)


def _newer(settings: Settings, version: tuple[int, int]) -> list[Advice]:
    """Requeues since 25.11: the delay can be chosen, and a job can ask for none."""
    if version < (25, 11):
        return []
    found = []
    delay = re.search(r"(?:^|,)\s*requeue_delay=(\d{1,6})", value(settings, "SchedulerParameters"))
    if delay is None:
        sentence = "a requeue that srobustd does not shorten waits 120 s; this version can wait less"
        fix = _with(settings, "SchedulerParameters", f"requeue_delay={REQUEUE_DELAY_S}")
        found.append(Advice(Severity.ADVICE, "requeue_delay", sentence, fix))
    elif int(delay[1]) < LEAST_REQUEUE_DELAY_S:
        sentence = (
            f"requeue_delay={delay[1]}: when Slurm gives up a node, its job may start before srobustd has pointed it "
            "at its seat: outside of it, or behind other jobs"
        )
        wanted = re.sub(
            r"requeue_delay=\d+", f"requeue_delay={REQUEUE_DELAY_S}", value(settings, "SchedulerParameters")
        )
        found.append(Advice(Severity.WRONG, "requeue_delay", sentence, f"SchedulerParameters={wanted}"))
    else:
        found.append(_ok("requeue_delay", f"{delay[1]} s"))
    if "enable_expedited_requeue" in words(settings, "SlurmctldParameters"):
        sentence = (
            "enable_expedited_requeue: Slurm holds a job of `sbatch --requeue=expedite` whose script fails while no "
            "epilog does, and the job's owner cannot change it while Slurm requeues it; seats need none of it"
        )
        others = [word for word in value(settings, "SlurmctldParameters").split(",") if "expedited" not in word.lower()]
        fix = f"SlurmctldParameters={','.join(others)}"
        found.append(Advice(Severity.ADVICE, "SlurmctldParameters", sentence, fix))
    return found
