from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from host_trees import plant, said
from test_host_tasks import stat

from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.registry import CheckError

V2 = "/sys/fs/cgroup/system.slice"
V1 = "/sys/fs/cgroup/systemd/system.slice"
RUNNING = {"/proc/1/stat": stat(1, "systemd", "S"), "/proc/20/stat": stat(20, "munged", "S")}


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        (RUNNING, {}, ("skip", "no_services_named")),
        ({}, {"required": ["munged"]}, ("unknown", "no_processes")),
        (RUNNING, {"required": ["munged"]}, ("pass", "services_run")),
        (RUNNING, {"required": ["sssd"]}, ("fail", "service_down")),
        (RUNNING, {"wanted": ["sssd"]}, ("warn", "service_down")),
        ({**RUNNING, f"{V2}/sssd.service/cgroup.procs": "31\n"}, {"required": ["sssd"]}, ("pass", "services_run")),
        (
            {**RUNNING, f"{V1}/sssd.service/cgroup.procs": "31\n"},
            {"required": ["sssd.service"]},
            ("pass", "services_run"),
        ),
        ({**RUNNING, f"{V2}/sssd.service/cgroup.procs": ""}, {"required": ["sssd"]}, ("fail", "service_down")),
        (
            {**RUNNING, f"{V2}/x.service/cgroup.events": "populated 1\nfrozen 0\n"},
            {"required": ["x"]},
            ("pass", "services_run"),
        ),
        (
            {**RUNNING, f"{V2}/system-opensm.slice/opensm@1.service/cgroup.procs": "9"},
            {"required": ["opensm@1"]},
            ("pass", "services_run"),
        ),
        # The kernel keeps 15 characters of a command's name.
        (
            {**RUNNING, "/proc/9/stat": stat(9, "nvidia-persiste", "S")},
            {"required": ["nvidia-persistenced"]},
            ("pass", "services_run"),
        ),
        ({**RUNNING, "/proc/9/stat": stat(9, "sssd", "Z")}, {"required": ["sssd"]}, ("fail", "service_down")),
    ],
)
def test_services(tmp_path: Path, files: dict[str, str], options: dict[str, Any], expected: tuple[str, str]) -> None:
    """A service runs where a command of its name lives, or a process stands in its unit's control group."""
    assert said("services", plant(tmp_path, files), **options) == expected


def test_a_service_s_name_is_no_path() -> None:
    """What could leave the folder of units is refused by name."""
    check = registry.get("services")
    for name in ("../../etc", "a b", "", 7):
        with pytest.raises(CheckError, match=r"services\.required"):
            check.probe(Context("n1"), {"required": [name], "wanted": []})


SCOPE = "/sys/fs/cgroup/system.slice/slurmstepd.scope"
SLUID = "sEKNKTV3WPV500"
STEPD = {"/proc/16/stat": stat(16, "slurmstepd", "S"), "/proc/16/cmdline": "slurmstepd: [77.batch]\0"}


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        ({}, {}, ("skip", "no_job_cgroups")),
        ({**STEPD, f"{SCOPE}/job_77/step_0/task_0/cgroup.procs": "99\n"}, {}, ("pass", "cgroups_clean")),
        ({f"{SCOPE}/job_77/step_0/task_0/cgroup.procs": "99\n"}, {}, ("warn", "cgroup_processes")),
        ({f"{SCOPE}/job_77/cgroup.events": "populated 1\n"}, {}, ("warn", "cgroup_processes")),
        ({f"{SCOPE}/job_77/cgroup.events": "populated 0\n"}, {}, ("pass", "cgroups_clean")),
        ({f"{SCOPE}/job_77/cgroup.events": "populated 0\n"}, {"warn_empty": 1}, ("warn", "cgroup_leftovers")),
        ({"/sys/fs/cgroup/memory/slurm/uid_7/job_5/step_0/cgroup.procs": "9\n"}, {}, ("warn", "cgroup_processes")),
        ({"/sys/fs/cgroup/freezer/slurm_n1/uid_7/job_5/cgroup.procs": ""}, {}, ("pass", "cgroups_clean")),
        (
            {f"{SCOPE.replace('system', 'slurm')}/{SLUID}/step_0/user/task_0/cgroup.procs": "99\n"},
            {},
            ("warn", "cgroup_processes"),
        ),
        ({f"{SCOPE}/{SLUID}/step_0/user/task_0/cgroup.procs": "99\n"}, {}, ("warn", "cgroup_processes")),
        (
            {
                **STEPD,
                "/proc/16/cgroup": f"0::/system.slice/slurmstepd.scope/{SLUID}/step_0/slurm\n",
                f"{SCOPE}/{SLUID}/step_0/user/task_0/cgroup.procs": "99\n",
            },
            {},
            ("pass", "cgroups_clean"),
        ),
        ({f"{SCOPE}/job_x/cgroup.procs": "9", f"{SCOPE}/system/cgroup.procs": "9"}, {}, ("skip", "no_job_cgroups")),
    ],
)
def test_cgroups(tmp_path: Path, files: dict[str, str], options: dict[str, Any], expected: tuple[str, str]) -> None:
    """Groups of jobs without a slurmstepd, by number or SLUID, in both versions: with processes in them they warn."""
    assert said("cgroups", plant(tmp_path, files), **options) == expected
