"""May a user's jobs start in a partition?

Asks partitions, accounting and `sbatch --test-only`. All three are needed: without EnforcePartLimits, slurmctld takes a
job that its partition will never start.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass

from slurm_robust.slurm import process
from slurm_robust.slurm.commands import CommandClient
from slurm_robust.slurm.errors import SlurmRefusedError


@dataclass(frozen=True)
class PartitionRules:
    """Whose jobs a partition takes. Empty lists: everybody's."""

    name: str
    accounts: frozenset[str] = frozenset()
    denied_accounts: frozenset[str] = frozenset()
    qos: frozenset[str] = frozenset()
    denied_qos: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Association:
    """An account that a user may run jobs under.

    Attributes:
        qos: The QOS that a job may ask for.
        default: True for the account of jobs that do not name one.
    """

    account: str
    qos: frozenset[str] = frozenset()
    default_qos: str = ""
    default: bool = False


def parse_partitions(text: str) -> list[PartitionRules]:
    """Read `scontrol show partition -o`."""
    found = []
    for line in text.splitlines():
        told = dict(word.partition("=")[::2] for word in line.split())
        if name := told.get("PartitionName"):
            keys = ("AllowAccounts", "DenyAccounts", "AllowQos", "DenyQos")
            found.append(PartitionRules(name, *(_names(told.get(key, "")) for key in keys)))
    return found


def parse_associations(text: str) -> list[Association]:
    """Read `sacctmgr -n -P show user … withassoc` of account, default account, QOS and default QOS."""
    found = []
    for line in text.splitlines():
        account, default, qos, default_qos, *_ = [*line.split("|"), "", "", ""]
        if account:
            found.append(Association(account, _names(qos), default_qos, account == default))
    return found


def _names(text: str) -> frozenset[str]:
    return frozenset() if text in ("", "ALL", "(null)") else frozenset(n for n in text.split(",") if n)


class AdmissionClient(CommandClient):
    """Asks Slurm's commands."""

    def partitions(self) -> list[PartitionRules]:
        """Return the rules of all partitions."""
        return parse_partitions(self._run("read partitions", ["scontrol", "show", "partition", "-o"]))

    def associations(self, user: str) -> list[Association]:
        """Return the accounts under which a user may run jobs; empty if the accounting does not know the user."""
        layout = "format=account,defaultaccount,qos,defaultqos"
        argv = ["sacctmgr", "-n", "-P", "show", "user", user, "withassoc", layout]
        return parse_associations(self._run(f"read the accounting of {user}", argv))

    def refusal(self, args: list[str], user: str) -> str:
        """Return why `sbatch --test-only` refuses such a job of this user; empty if it does not.

        Raises:
            SlurmError: Slurm could not be asked.
        """
        uid = pwd.getpwnam(user).pw_uid
        argv = [self._command("sbatch"), "--test-only", *args, *([f"--uid={uid}"] if uid != os.getuid() else [])]
        env = process.scrubbed(os.environ, self._config.conf)
        done = process.run(argv, timeout_s=self._config.timeout_s, env=env, stdin="#!/bin/sh\ntrue\n")
        try:
            self._output("try a job", done)
        except SlurmRefusedError as error:
            return error.text or error.what
        return ""
