from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config import site as configuration
from slurm_robust.doctor import settings
from slurm_robust.doctor.advice import Severity

GOOD = {
    "SLURM_VERSION": "22.05.8",
    "Prolog": "/usr/share/slurm_robust/prolog/srobust-prolog",
    "Epilog": "/usr/share/slurm_robust/epilog/srobust-epilog",
    "PrologFlags": "Alloc,DeferBatch",
    "PrologEpilogTimeout": "60",
    "SchedulerParameters": "nohold_on_prolog_fail,bf_interval=30",
    "HealthCheckProgram": "/usr/share/slurm_robust/prolog/srobust-healthcheck",
    "HealthCheckInterval": "300 sec",
    "HealthCheckNodeState": "ANY,CYCLE",
    "JobRequeue": "1",
    "RequeueExit": "(null)",
    "RequeueExitHold": "(null)",
    "KillWait": "30 sec",
    "UnkillableStepTimeout": "60 sec",
    "MessageTimeout": "10 sec",
    "SlurmdTimeout": "60 sec",
    "SuspendProgram": "(null)",
    "SlurmctldParameters": "(null)",
    "AccountingStorageType": "accounting_storage/slurmdbd",
}
NEW = {"SLURM_VERSION": "25.11.2"}
DELAYED = NEW | {"SchedulerParameters": "nohold_on_prolog_fail,requeue_delay=10"}
APART = {"SLURM_VERSION": "25.05.3", "PrologEpilogTimeout": "(null)"}
STANDBY = {"SuspendProgram": "/opt/off", "SuspendExcStates": "(null)"}


def of(changes: dict[str, str], yaml: str = "standby: {size: 2}") -> dict[str, tuple[str, str]]:
    """What is not well, by what it is about: level and fix."""
    found = settings.judge(GOOD | changes, configuration.parse(yaml))
    return {a.about: (a.level.value, a.fix) for a in found if a.level is not Severity.OK}


def test_a_site_that_follows_the_documentation_is_well() -> None:
    """Not one word of advice; every point has a sentence."""
    assert of({}) == {}
    assert all(a.sentence for a in settings.judge(GOOD, configuration.Config()))


@pytest.mark.parametrize(
    ("changes", "about", "level", "fix"),
    [
        ({"SLURM_VERSION": "20.11.9"}, "SLURM_VERSION", "wrong", ""),
        ({"SLURM_VERSION": "?"}, "SLURM_VERSION", "unknown", ""),
        (
            {"AccountingStorageType": "accounting_storage/none"},
            "AccountingStorageType",
            "advice",
            "",
        ),
        (
            {"SLURM_VERSION": "24.11.5", "GresTypes": "gpu", "AccountingStorageTRES": "cpu,mem"},
            "AccountingStorageTRES",
            "advice",
            "AccountingStorageTRES=cpu,mem,gres/gpu",
        ),
        ({"Prolog": "(null)"}, "Prolog", "advice", "Prolog=/usr/share/slurm_robust/prolog/srobust-prolog"),
        ({"Epilog": "(null)"}, "Epilog", "advice", "Epilog=/usr/share/slurm_robust/epilog/srobust-epilog"),
        ({"Prolog": "/etc/slurm/prolog.d/*"}, "Prolog", "advice", ""),
        ({"PrologFlags": "(null)"}, "PrologFlags", "wrong", "PrologFlags=Alloc,DeferBatch"),
        ({"PrologFlags": "Alloc,Contain"}, "PrologFlags", "wrong", "PrologFlags=DeferBatch,Alloc,Contain"),
        ({"PrologEpilogTimeout": "65534"}, "PrologEpilogTimeout", "advice", "PrologEpilogTimeout=60"),
        ({"PrologEpilogTimeout": "20"}, "PrologEpilogTimeout", "wrong", "PrologEpilogTimeout=60"),
        (
            {"SchedulerParameters": "bf_interval=30"},
            "SchedulerParameters",
            "wrong",
            "SchedulerParameters=bf_interval=30,nohold_on_prolog_fail",
        ),
        (
            {"SchedulerParameters": "(null)"},
            "SchedulerParameters",
            "wrong",
            "SchedulerParameters=nohold_on_prolog_fail",
        ),
        (
            {"HealthCheckProgram": "(null)"},
            "HealthCheckProgram",
            "advice",
            "HealthCheckProgram=/usr/share/slurm_robust/prolog/srobust-healthcheck",
        ),
        ({"HealthCheckInterval": "0 sec"}, "HealthCheckInterval", "wrong", "HealthCheckInterval=300"),
        ({"HealthCheckInterval": "900 sec"}, "HealthCheckInterval", "advice", "HealthCheckInterval=300"),
        ({"HealthCheckNodeState": "IDLE"}, "HealthCheckNodeState", "advice", "HealthCheckNodeState=ANY,CYCLE"),
        ({"HealthCheckNodeState": "ANY"}, "HealthCheckNodeState", "advice", "HealthCheckNodeState=ANY,CYCLE"),
        ({"JobRequeue": "0"}, "JobRequeue", "advice", "JobRequeue=1"),
        ({"ProctrackType": "proctrack/linuxproc"}, "ProctrackType", "advice", "ProctrackType=proctrack/cgroup"),
        ({"RequeueExit": "1,90-95"}, "RequeueExit", "wrong", "RequeueExit=1,90,91,92,94,95"),
        ({"RequeueExit": "64"}, "RequeueExit", "wrong", "RequeueExit="),
        ({"RequeueExitHold": "75,2"}, "RequeueExitHold", "wrong", "RequeueExitHold=2"),
        (
            {"UnkillableStepTimeout": "600 sec"},
            "UnkillableStepTimeout",
            "wrong",
            "robust.yaml: seat: {duration_min: 13}",
        ),
        ({"MessageTimeout": "30 sec"}, "MessageTimeout", "advice", "UnkillableStepTimeout=150"),
        ({"SlurmdTimeout": "0 sec"}, "SlurmdTimeout", "wrong", "SlurmdTimeout=60"),
        ({"SlurmdTimeout": "600 sec"}, "SlurmdTimeout", "advice", "SlurmdTimeout=60"),
        (STANDBY, "SuspendExcNodes", "wrong", "SuspendExcNodes=<the standby nodes>"),
        (STANDBY | {"SLURM_VERSION": "23.11.4"}, "SuspendExcStates", "wrong", "SuspendExcStates=RESERVED"),
        (
            NEW,
            "requeue_delay",
            "advice",
            "SchedulerParameters=nohold_on_prolog_fail,bf_interval=30,requeue_delay=10",
        ),
        (
            NEW | {"SchedulerParameters": "requeue_delay=0,nohold_on_prolog_fail"},
            "requeue_delay",
            "wrong",
            "SchedulerParameters=requeue_delay=10,nohold_on_prolog_fail",
        ),
        (
            DELAYED | {"SlurmctldParameters": "cloud_dns,enable_expedited_requeue"},
            "SlurmctldParameters",
            "advice",
            "SlurmctldParameters=cloud_dns",
        ),
        (APART | {"PrologTimeout": "20", "EpilogTimeout": "90"}, "PrologTimeout", "wrong", "PrologTimeout=60"),
        (APART | {"PrologTimeout": "60", "EpilogTimeout": "65534"}, "EpilogTimeout", "advice", "EpilogTimeout=60"),
        (
            APART | {"PrologTimeout": "100", "EpilogTimeout": "500"},
            "UnkillableStepTimeout",
            "wrong",
            "robust.yaml: seat: {duration_min: 12}",
        ),
        (
            {"GresTypes": "gpu", "AccountingStorageTRES": "cpu,gres/gpu"},
            "GresTypes",
            "advice",
            "upgrade Slurm; until then, when it happens: scontrol reconfigure",
        ),
    ],
)
def test_each_fault_is_found_with_the_line_that_fixes_it(
    changes: dict[str, str], about: str, level: str, fix: str
) -> None:
    """That finding and no other."""
    assert of(changes) == {about: (level, fix)}


@pytest.mark.parametrize(
    "changes",
    [
        {"RequeueExit": "75"},  # a requeue was wanted: let Slurm do it
        STANDBY | {"SLURM_VERSION": "23.11.4", "SuspendExcStates": "DOWN,RESERVED"},
        {"prologflags": "ALLOC,DEFERBATCH,X11"},
        {"PrologEpilogTimeout": "1 min"},
        {"SlurmdTimeout": "300 sec"},
        {"SLURM_VERSION": "23.11.4", "GresTypes": "gpu", "AccountingStorageTRES": "cpu,gres/gpu"},
    ],
)
def test_what_is_well_is_left_alone(changes: dict[str, str]) -> None:
    """No finding."""
    there = {k: v for k, v in GOOD.items() if k.lower() not in {c.lower() for c in changes}}
    found = settings.judge(there | changes, configuration.parse("standby: {size: 2}"))
    assert [a for a in found if a.level is not Severity.OK] == []


def test_without_standby_nodes_power_saving_concerns_nobody() -> None:
    """Nothing of ours is reserved."""
    assert of(STANDBY, "{}") == {}


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), st.text(max_size=30)))
def test_no_text_makes_it_fail(changes: dict[str, str]) -> None:
    """Whatever a version of Slurm prints: findings, each with a sentence, none with a line break in its fix."""
    for advice in settings.judge(GOOD | changes, configuration.Config()):
        assert advice.sentence


def test_the_example_is_what_the_doctor_asks_for() -> None:
    """examples/slurm.conf has every line that is proposed to a site that has none of them."""
    text = (Path(__file__).parents[2] / "examples/slurm.conf").read_text()
    bare = {"SLURM_VERSION": "22.05.8", "SlurmdTimeout": "60 sec", "MessageTimeout": "10 sec"}
    fixes = [a.fix for a in settings.judge(bare, configuration.Config()) if a.fix]
    assert len(fixes) >= 4
    for fix in fixes:
        assert fix in text, fix


@pytest.mark.parametrize(
    ("changes", "repair", "wanted"),
    [
        ({}, "enabled: false", {}),
        ({}, "enabled: true", {"RebootProgram": ("wrong", "RebootProgram=/sbin/reboot")}),
        ({}, "enabled: true, remedies: [gpu_reset]", {}),
        ({}, "enabled: true, command: [/opt/power, '%n']", {}),
        ({"RebootProgram": "/sbin/reboot", "ResumeTimeout": "600 sec"}, "enabled: true", {}),
        (
            {"RebootProgram": "/sbin/reboot", "ResumeTimeout": "3600 sec"},
            "enabled: true",
            {"ResumeTimeout": ("advice", "robust.yaml: repair: {timeout_s: 7200}")},
        ),
    ],
)
def test_a_repair_by_reboot_needs_slurms_help(
    changes: dict[str, str], repair: str, wanted: dict[str, tuple[str, str]]
) -> None:
    """RebootProgram, and a time limit that a boot can keep."""
    assert of(changes, f"standby: {{size: 2}}\nrepair: {{{repair}}}") == wanted
