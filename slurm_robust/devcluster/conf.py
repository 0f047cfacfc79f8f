"""Writes the text of a devcluster's files: slurm.conf and the files beside it, robust.yaml, prolog and epilog."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slurm_robust.devcluster.spec import ClusterPaths, Spec


@dataclass(frozen=True)
class Settings:
    """Settings that were detected or chosen for this machine.

    Attributes:
        name: Slurm's ClusterName, different for every devcluster of this machine.
        user: Account that runs the daemons.
        auth: `munge` or `none`.
        proctrack: `cgroup` or `linuxproc`.
        version: Slurm's major version, `(22, 5)`.
        ctld_port: slurmctld's port; node k has `ctld_port + k`, slurmdbd `ctld_port + 78`, the daemon's HTTP side
            `ctld_port + 79`.
    """

    name: str
    user: str
    auth: str
    proctrack: str
    ctld_port: int
    version: tuple[int, int]

    @property
    def http_port(self) -> int:
        """Port of srobustd's HTTP side."""
        return self.ctld_port + 79

    @property
    def dbd_port(self) -> int:
        """Port of slurmdbd."""
        return self.ctld_port + 78


def node_names(count: int) -> tuple[str, ...]:
    """Return the names `n1` … `nN`."""
    return tuple(f"n{index}" for index in range(1, count + 1))


def folded(count: int) -> str:
    """Return the names as Slurm folds them."""
    return f"n[1-{count}]" if count > 1 else "n1"


def slurm_conf(spec: Spec, settings: Settings, layout: ClusterPaths) -> str:
    """Return the whole slurm.conf."""
    root, last = layout.root, settings.ctld_port + spec.nodes
    ports = f"[{settings.ctld_port + 1}-{last}]" if spec.nodes > 1 else str(last)
    lines = {
        "ClusterName": settings.name,
        "SlurmctldHost": "localhost(127.0.0.1)",
        "SlurmctldPort": str(settings.ctld_port),
        "AuthType": f"auth/{settings.auth}",
        "CredType": f"cred/{settings.auth}",
        "SlurmUser": settings.user,
        "SlurmdUser": settings.user,
        "StateSaveLocation": f"{layout.state}/slurmctld",
        "SlurmdSpoolDir": f"{root}/spool/%n",
        "SlurmctldPidFile": f"{layout.run}/slurmctld.pid",
        "SlurmdPidFile": f"{layout.run}/slurmd.%n.pid",
        "SlurmctldLogFile": f"{layout.log}/slurmctld.log",
        "SlurmdLogFile": f"{layout.log}/slurmd.%n.log",
        "MailProg": "/bin/true",
        "ProctrackType": f"proctrack/{settings.proctrack}",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "JobAcctGatherType": "jobacct_gather/none",
        **_accounting(spec, settings, layout),
        "SelectType": "select/cons_tres",
        # Memory is not allocated: the nodes claim more than this machine has.
        "SelectTypeParameters": "CR_CPU",
        "SlurmdParameters": "config_overrides",
        "ReturnToService": "2",
        "SlurmdTimeout": str(spec.slurmd_timeout_s),
        # slurmctld repeats the ping of a dead slurmd for this long before the node's silence counts: with Slurm's own
        # 10 s a node with SlurmdTimeout 10 is DOWN after 28 s, with 5 s after 18.
        "MessageTimeout": str(min(10, max(3, spec.slurmd_timeout_s // 2))),
        "TaskProlog": f"{layout.etc}/taskprolog",
        "KillWait": str(spec.kill_wait_s),
        "JobRequeue": "1",
        # nohold_on_prolog_fail: a failed prolog drains its node, and the job waits for another one; without it the
        # job is held until a person releases it.
        # The intervals are short, so that tests do not wait for the next backfill pass.
        "SchedulerParameters": "nohold_on_prolog_fail,bf_interval=2,sched_interval=2,batch_sched_delay=1",
    }
    if settings.auth == "munge":
        lines["AuthInfo"] = f"socket={layout.munge}/socket"
    if spec.prolog or spec.epilog_sleep_s:
        # Without DeferBatch the batch script starts when the first node's prolog has ended.
        lines["PrologFlags"] = "Alloc,DeferBatch" if settings.version >= (22, 5) else "Alloc"
        lines["PrologEpilogTimeout"] = str(60 + round(spec.epilog_sleep_s))
        lines["Prolog"] = f"{layout.etc}/prolog"
        lines["Epilog"] = f"{layout.etc}/epilog"
    gres = f" Gres=gpu:fake:{spec.gpus_per_node}" if spec.gpus_per_node else ""
    if gres:
        lines["GresTypes"] = "gpu"
    replaced = {line.split("=", 1)[0].strip().lower() for line in spec.slurm_conf_extra.splitlines()}
    text = [f"{key}={value}" for key, value in lines.items() if key.lower() not in replaced]
    if "nodename" not in replaced:
        text.append(
            f"NodeName={folded(spec.nodes)} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports} "
            f"CPUs={spec.cpus_per_node} RealMemory={spec.memory_mb}{gres}"
        )
    if "partitionname" not in replaced:
        text.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE")
    return "\n".join([*text, spec.slurm_conf_extra.rstrip(), ""])


def _accounting(spec: Spec, settings: Settings, layout: ClusterPaths) -> dict[str, str]:
    if not spec.accounting:
        return {"AccountingStorageType": "accounting_storage/none"}
    lines = {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": str(settings.dbd_port),
    }
    if settings.auth == "munge":
        lines["AccountingStoragePass"] = f"{layout.munge}/socket"  # of the munged that this connection uses
    return lines | ({"AccountingStorageTRES": "gres/gpu"} if spec.gpus_per_node else {})


def slurmdbd_conf(settings: Settings, layout: ClusterPaths) -> str:
    """Return the whole slurmdbd.conf; without a password, since its MariaDB asks for none."""
    lines = {
        "AuthType": f"auth/{settings.auth}",
        "DbdHost": "localhost",
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(settings.dbd_port),
        "SlurmUser": settings.user,
        "LogFile": f"{layout.log}/slurmdbd.log",
        "PidFile": f"{layout.run}/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        # By this name MariaDB's library takes a socket, whose path slurmdbd has in its environment.
        "StorageHost": "localhost",
        "StorageUser": settings.user,
        "StorageLoc": "slurm_acct_db",
    }
    if settings.auth == "munge":
        lines["AuthInfo"] = f"socket={layout.munge}/socket"
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def gres_conf(spec: Spec, layout: ClusterPaths) -> str:
    """Return gres.conf, with the devices that are GPUs; all nodes share them, since jobs do not interfere."""
    if not spec.gpus_per_node:
        return ""
    files = f"gpu[0-{spec.gpus_per_node - 1}]" if spec.gpus_per_node > 1 else "gpu0"
    return f"NodeName={folded(spec.nodes)} Name=gpu Type=fake File={layout.root}/dev/{files}\n"


def cgroup_conf(settings: Settings, layout: ClusterPaths) -> str:
    """Return cgroup.conf: the cluster's own cgroups, or none, which newer versions of Slurm need in writing."""
    if settings.proctrack != "cgroup":
        return "CgroupPlugin=disabled\n" if settings.version >= (24, 5) else ""
    return f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={layout.cgroup}\n"


def robust_yaml(spec: Spec, settings: Settings, layout: ClusterPaths) -> str:
    """Return the site's configuration of this cluster."""
    base: dict[str, Any] = {
        "mode": spec.mode,
        "slurm": {"conf": str(layout.slurm_conf)},
        "standby": {"size": spec.standby},
        "daemon": {"state_dir": f"{layout.state}/srobustd", "http": {"host": "127.0.0.1", "port": settings.http_port}},
        "nodecheck": {
            "kmsg": f"{layout.root}/kmsg/%n",
            "cache_dir": f"{layout.root}/cache/%n",
            # All nodes are this machine: if each computed, the checks would find it slow.
            "disable": ["matmul", "bandwidth", "collective"],
        },
        # They would take processors from the ranks of jobs on other nodes.
        "nodetest": {"tests": []},
    }
    return yaml.safe_dump(merged(base, spec.robust_yaml), sort_keys=False)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `over` merged over `base`, at every depth; neither is changed."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def task_prolog(layout: ClusterPaths) -> str:
    """Return `etc/taskprolog`: a TMPDIR for the tasks of steps that have no TMPDIR of their own.

    A killed rank does not remove its files, and files of Python's multiprocessing in TMPDIR do not name their owner.
    Batch scripts keep their TMPDIR: the wrapper in them meets processes outside of the job there.
    """
    return f"""#!/bin/sh
# Written by `srobust devcluster up`: Slurm adds what it prints to the task's environment.
case ${{SLURM_STEP_ID:-batch}} in
    batch | 42949672?? | -*) exit 0 ;;
esac
[ -n "$TMPDIR" ] || echo export TMPDIR={shlex.quote(str(layout.tmp))}
"""


def env_file(values: Mapping[str, str]) -> str:
    """Return `etc/env`, the settings of prolog and epilog: `KEY=value` in each line, without quoting."""
    return "".join(f"{key}={value}\n" for key, value in values.items())


def script(
    which: str, exports: Mapping[str, str], candidates: list[Path], settings: Path, *, log: Path, sleep_s: float = 0
) -> str:
    """Return `etc/prolog` or `etc/epilog`, which runs the project's script, if there is one.

    slurmd does not pass a PATH, so all variables are set here. `candidates` are paths of the project's script, best
    first, searched at run time. That script reads `settings` (`env_file`) and ignores variables; its output is also
    added to `<log>.<node>.log`.
    """
    lines = ["#!/bin/sh", f"# Written by `srobust devcluster up`: finds the project's {which} and runs it."]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in exports.items()]
    if sleep_s:
        lines.append(f"sleep {sleep_s:g}")
    for path in map(str, candidates):
        # slurmd only logs a script's output if the script failed: the file contains all output.
        words = f"out=$({shlex.quote(path)} {shlex.quote(str(settings))} 2>&1); code=$?"
        lines += [
            f"if [ -x {shlex.quote(path)} ]; then",
            f"    {words}",
            f'    [ -n "$out" ] && echo "$out" | tee -a {shlex.quote(str(log))}.${{SLURMD_NODENAME:-none}}.log >&2',
            "    exit $code",
            "fi",
        ]
    return "\n".join([*lines, "exit 0", ""])
