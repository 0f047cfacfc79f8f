"""May the daemon's own jobs start, and may it make reservations? Judged from what Slurm says of its user. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_robust.config.site import OwnJobsConfig
from slurm_robust.doctor.advice import Advice, Severity
from slurm_robust.doctor.settings import Settings, words
from slurm_robust.slurm.admission import Association, PartitionRules

ABOUT = "own_jobs"
_OF_SETTINGS = re.compile(r"account|qos|permitted|partition|association|user", re.IGNORECASE)
"""Words in a refusal that come from the site's settings; other refusals say, for example, that no node is free."""


def enforced(settings: Settings) -> bool:
    """Return whether slurmctld runs no job of a user without an association."""
    return bool(words(settings, "AccountingStorageEnforce") & {"associations", "limits", "qos", "safe", "all"})


def judge(
    config: OwnJobsConfig,
    user: str,
    partitions: Sequence[PartitionRules],
    associations: Sequence[Association] | None,
    tried: Mapping[str, str],
    *,
    standby: Sequence[str] = (),
) -> list[Advice]:
    """Return findings about the jobs of the daemon's user in these partitions.

    `associations` is None if Slurm enforces none; `tried` has what `sbatch --test-only` said, by partition. A problem
    in a partition without a standby pool is only advice: perhaps no training runs there.
    """
    if associations is not None and not associations:
        account = next((min(p.accounts) for p in partitions if p.accounts), config.account or "ACCOUNT")
        sentence = f"Slurm's accounting has no association for {user}: it refuses the daemon's reservations and jobs"
        return [Advice(Severity.WRONG, ABOUT, sentence, f"sacctmgr add user {user} account={account}")]
    found = []
    for p in partitions:
        advice = _partition(config, user, p, associations, tried.get(p.name, ""))
        elsewhere = bool(standby) and p.name not in standby and advice.level is Severity.WRONG
        found.append(replace(advice, level=Severity.ADVICE) if elsewhere else advice)
    wrong = [advice for advice in found if advice.level is not Severity.OK]
    if not wrong and found:
        names = ", ".join(p.name for p in partitions)
        return [Advice(Severity.OK, ABOUT, f"jobs of {user} may start in {names}")]
    return wrong


def on_condition(advice: Advice, user: str) -> Advice:
    """Return the same advice where nothing on this host shows as which user the daemon runs: it may be another one."""
    if advice.level not in (Severity.WRONG, Severity.ADVICE):
        return advice
    return replace(advice, level=Severity.ADVICE, sentence=f"if the daemon runs as {user}: {advice.sentence}")


def _partition(
    config: OwnJobsConfig, user: str, p: PartitionRules, associations: Sequence[Association] | None, said: str
) -> Advice:
    where, known = f"partition {p.name}", {a.account: a for a in associations or ()}
    default = next((a.account for a in associations or () if a.default), "")
    account = config.account or default
    if associations is not None:
        if account not in known:
            sentence = f"{user} may not run jobs under account {account or '(no default)'}, as own_jobs.account wants"
            return Advice(Severity.WRONG, ABOUT, sentence, f"sacctmgr add user {user} account={account or 'ACCOUNT'}")
        if (p.accounts and account not in p.accounts) or account in p.denied_accounts:
            takes = f"takes jobs of {', '.join(sorted(p.accounts))} only" if p.accounts else f"takes none of {account}"
            sentence = f"{where} {takes}, and the daemon's run under {account}: nothing is checked there"
            return Advice(Severity.WRONG, ABOUT, sentence, _account_fix(user, p, known))
        qos = config.qos or known[account].default_qos or "normal"
        if (p.qos and qos not in p.qos) or qos in p.denied_qos:
            takes = f"asks for QOS {', '.join(sorted(p.qos))}" if p.qos else f"takes no job of QOS {qos}"
            sentence = f"{where} {takes}, and the daemon's jobs have {qos}: nothing is checked there"
            fix = f"robust.yaml: own_jobs: {{qos: {min(p.qos, default='QOS')}}}"
            if p.qos and not p.qos & known[account].qos:
                fix += f"; sacctmgr modify user {user} account={account} set qos+={min(p.qos)}"
            return Advice(Severity.WRONG, ABOUT, sentence, fix)
    if said and _OF_SETTINGS.search(said):
        sentence = f"{where} refuses the daemon's jobs (sbatch --test-only: {said}): nothing is checked there"
        return Advice(Severity.WRONG, ABOUT, sentence, "robust.yaml: own_jobs: {account: …, qos: …, partition: …}")
    if said:
        return Advice(Severity.UNKNOWN, ABOUT, f"{where}: sbatch --test-only says: {said}", "srobust doctor  # later")
    return Advice(Severity.OK, ABOUT, where)


def _account_fix(user: str, p: PartitionRules, known: Mapping[str, Association]) -> str:
    """Return the line for robust.yaml, and the account that the user still lacks."""
    if fit := sorted(p.accounts & known.keys()):
        return f"robust.yaml: own_jobs: {{account: {fit[0]}}}"
    name = min(p.accounts, default="ACCOUNT")
    return f"sacctmgr add user {user} account={name}; robust.yaml: own_jobs: {{account: {name}}}"
