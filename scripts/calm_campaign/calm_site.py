"""The devcluster of a campaign: default settings, the daemon in `mode: act`, the SPANK plugin; and what Slurm shows."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import spank_build

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.devcluster.cluster import DevCluster, Spec

_OF_THE_MACHINE: Final = frozenset({"tick_s", "capture_timeout_s", "kill_clean_timeout_s", "report_interval_s"}) | {
    "answer_timeout_s",
    "requeue_timeout_s",
}
"""Settings that measure how fast Slurm and this machine are. A smaller scale of time does not make these faster."""
_OUT: Final = re.compile(r"DRAIN|DOWN|FAIL")


@dataclass(frozen=True)
class Shown:
    """What Slurm shows at one moment.

    Attributes:
        jobs: Job number → its fields, as `scontrol show job` names them.
        out: Nodes that are out of service, with their state or the reservation that holds them.
    """

    jobs: Mapping[str, Mapping[str, str]]
    out: Mapping[str, str]


def scaled_settings(scale: float) -> dict[str, Any]:
    """Scale all limits of `supervise` that wait for a program; nothing at scale 1: these are the default settings."""
    if scale == 1:
        return {}
    waits = {
        setting.name: getattr(SuperviseConfig(), setting.name)
        for setting in msgspec.structs.fields(SuperviseConfig)
        if setting.name.endswith("_s") and setting.name not in _OF_THE_MACHINE
    }
    return {"supervise": {name: value * scale for name, value in waits.items() if isinstance(value, (int, float))}}


class Site:
    """One devcluster with its plugin, and the runs that are on it."""

    def __init__(self, nodes: int, scale: float) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="srobust-calm-"))
        self.folder.chmod(0o755)
        conf = self.folder / "plugstack.conf"
        conf.write_text(spank_build.line(spank_build.build(self.folder)) + "\n")
        # A busy machine answers late. No program here is about a node that does not answer.
        extra = f"PlugStackConfig={conf}\nMinJobAge=3600"
        self.cluster = DevCluster.up(
            Spec(
                nodes=nodes, daemon=True, slurm_conf_extra=extra, slurmd_timeout_s=120,
                robust_yaml=scaled_settings(scale),
            ),
            timeout_s=120,
        )  # fmt: skip
        self.nodes = nodes
        self.used = 0
        self.stale = False
        """True once a node is out of service: no further run starts here."""

    def down(self) -> None:
        """End everything of it."""
        self.cluster.down()
        shutil.rmtree(self.folder, ignore_errors=True)

    def show(self) -> Shown:
        """Ask Slurm for its jobs, nodes and reservations."""
        parts = ("job", "node", "reservation")
        command = "; echo =====; ".join(f"scontrol -o show {part}" for part in parts)
        done = self.cluster.run(["bash", "-c", command], check=False, timeout_s=60)
        jobs, nodes, held = (*done.stdout.split("====="), "", "")[:3]
        states = re.findall(r"NodeName=(\S+).*?\sState=(\S+)", nodes)
        out = {name: state for name, state in states if _OUT.search(state)}
        for name, folded in re.findall(r"ReservationName=(srobust-quarantine\S*).*?\sNodes=(\S+)", held):
            out |= dict.fromkeys(self.unfold(folded), name)
        return Shown({job["JobId"]: job for job in map(_fields, jobs.splitlines()) if "JobId" in job}, out)

    def unfold(self, folded: str) -> list[str]:
        """List the nodes of `n[1-3]`."""
        if not folded or folded == "(null)":
            return []
        return self.cluster.run(["scontrol", "show", "hostnames", folded], check=False).stdout.split()

    def steps(self, job: str) -> int:
        """Count the steps of a job that slurmds have launched, by their logs."""
        wanted = re.compile(rf"launch task StepId=({job}\.\d+) ")
        logs = self.cluster.layout.log.glob("slurmd.*.log")
        return len({step for log in logs for step in wanted.findall(log.read_text(errors="replace"))})


def _fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S*)", line))
