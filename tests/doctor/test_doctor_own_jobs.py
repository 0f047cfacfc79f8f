"""What doctor says of the daemon's own jobs on sites whose partitions ask for accounts or QOS."""

from __future__ import annotations

from slurm_robust.config.site import OwnJobsConfig
from slurm_robust.doctor.advice import Severity
from slurm_robust.doctor.own_jobs import enforced, judge
from slurm_robust.slurm.admission import Association, PartitionRules, parse_associations, parse_partitions

SHOWN = (
    "PartitionName=main AllowGroups=ALL AllowAccounts=train AllowQos=gpu,long AllocNodes=ALL Default=YES\n"
    "PartitionName=debug AllowGroups=ALL DenyAccounts=ops DenyQos=low AllocNodes=ALL Default=NO\n"
)
ROOT = Association("root", frozenset({"normal"}), "", default=True)
TRAIN = Association("train", frozenset({"normal", "gpu"}), "gpu")


def test_what_slurm_prints_is_read() -> None:
    """Partitions' lists, and the accounts of a user."""
    main, debug = parse_partitions(SHOWN)
    assert (main.accounts, main.qos) == ({"train"}, {"gpu", "long"})
    assert (debug.accounts, debug.denied_accounts, debug.denied_qos) == (set(), {"ops"}, {"low"})
    assert parse_associations("root|root|normal|\ntrain|root|gpu,normal|gpu\n") == [ROOT, TRAIN]


def test_enforcement_is_read_from_slurm_conf() -> None:
    """Limits and QOS imply associations."""
    assert enforced({"AccountingStorageEnforce": "limits,qos"})
    assert not enforced({"AccountingStorageEnforce": "none"})


def test_a_user_without_an_association_is_named_with_the_command() -> None:
    """Slurmctld refuses it even reservations."""
    (found,) = judge(OwnJobsConfig(), "slurm", parse_partitions(SHOWN)[:1], [], {})
    assert found.level is Severity.WRONG
    assert found.fix == "sacctmgr add user slurm account=train"


def test_a_partition_of_another_account_is_named_with_both_lines() -> None:
    """`sbatch --test-only` says nothing against it where EnforcePartLimits is not set."""
    main = PartitionRules("main", frozenset({"train"}))
    (found,) = judge(OwnJobsConfig(), "root", [main], [ROOT], {"main": ""})
    assert found.level is Severity.WRONG
    assert "partition main takes jobs of train only" in found.sentence
    assert found.fix == "sacctmgr add user root account=train; robust.yaml: own_jobs: {account: train}"
    (found,) = judge(OwnJobsConfig(), "root", [main], [ROOT, TRAIN], {})
    assert found.fix == "robust.yaml: own_jobs: {account: train}"
    (found,) = judge(OwnJobsConfig(account="train"), "root", [main], [ROOT, TRAIN], {})
    assert found.level is Severity.OK


def test_a_qos_that_a_partition_asks_for_is_named() -> None:
    """The default QOS of the account counts where none is chosen."""
    main = PartitionRules("main", qos=frozenset({"long"}))
    (found,) = judge(OwnJobsConfig(account="train"), "root", [main], [ROOT, TRAIN], {})
    assert "asks for QOS long, and the daemon's jobs have gpu" in found.sentence
    assert found.fix.endswith("sacctmgr modify user root account=train set qos+=long")
    (found,) = judge(OwnJobsConfig(), "root", [PartitionRules("main", qos=frozenset({"normal"}))], [ROOT], {})
    assert found.level is Severity.OK


def test_what_test_only_says_counts_where_it_speaks_of_settings() -> None:
    """That no node is free just now is no fault of the site's settings."""
    main = PartitionRules("main")
    said = "allocation failure: Invalid account or account/partition combination specified"
    (found,) = judge(OwnJobsConfig(), "root", [main], None, {"main": said})
    assert found.level is Severity.WRONG
    (found,) = judge(OwnJobsConfig(), "root", [main], None, {"main": "allocation failure: Requested nodes are busy"})
    assert found.level is Severity.UNKNOWN


def test_a_partition_without_standby_nodes_is_advice() -> None:
    """Its nodes may become suspects, too; but perhaps nobody trains there."""
    main, long = PartitionRules("main"), PartitionRules("long", qos=frozenset({"long"}))
    (found,) = judge(OwnJobsConfig(), "root", [main, long], [ROOT], {}, standby=["main"])
    assert (found.level, "partition long asks for QOS long" in found.sentence) == (Severity.ADVICE, True)
    (found,) = judge(OwnJobsConfig(), "root", [main, long], [ROOT], {})
    assert found.level is Severity.WRONG
