from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.core.model import JobRef
from slurm_robust.slurm import job_gpus, parse
from slurm_robust.slurm.errors import SlurmParseError

# As Slurm 22.05 prints it with SLURM_TIME_FORMAT=%s.
NODE = (
    "NodeName=n3 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=0.78 AvailableFeatures=a,b "
    "ActiveFeatures=a Gres=gpu:fake:4 NodeAddr=localhost NodeHostName=localhost Port=27803 Version=22.05.8 "
    "OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=2000 AllocMem=0 FreeMem=18679 Sockets=8 Boards=1 "
    "State=IDLE+DRAIN+NOT_RESPONDING ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A "
    "Partitions=main,short  BootTime=1795222297 SlurmdStartTime=1795223155 LastBusyTime=1795223155 "
    "CfgTRES=cpu=8,mem=2000M,billing=8 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s "
    "ExtSensorsWatts=0 ExtSensorsTemp=n/s"
)
RESERVATION = (
    "ReservationName=srobust-seat-1 StartTime=1795223382 EndTime=1795223982 Duration=00:10:00 Nodes=n[3-4] NodeCnt=2 "
    "CoreCnt=16 Features=(null) PartitionName=(null) Flags=FLEX,OVERLAP,IGNORE_JOBS,SPEC_NODES,NO_HOLD_JOBS_AFTER_END "
    "TRES=cpu=16 Users=root,cloudsdk Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) "
    "Watts=n/a MaxStartDelay=(null)"
)
SEPARATOR = "kQvWmZtRbLxYpJcD"
JOB = {
    "jobid": "608",
    "arrayjobid": "604",
    "arraytaskid": "0",
    "hetjobid": "N/A",
    "hetjoboffset": "N/A",
    "state": "RUNNING",
    "userid": "1000",
    "username": "ann",
    "partition": "main",
    "numnodes": "2",
    "nodelist": "n[1-2]",
    "batchhost": "n1",
    "batchflag": "1",
    "reason": "None",
    "reservation": "(null)",
    "reqnodes": "",
    "restartcnt": "1",
    "requeue": "1",
    "starttime": "1795223383",
    "submittime": "1795223382",
    "eligibletime": "1795223382",
    "endtime": "NONE",
    "timelimit": "1-00:00:00",
    "prioritylong": "4294901757",
    "tres-per-node": "gres:gpu:4",
    "feature": "(null)",
    "exit_code": "0",
    "name": "train",
    "comment": "",
    "admin_comment": "(null)",
    "stdout": "/home/ann/slurm-604_0.out",
    "stderr": "/home/ann/slurm-604_0.err",
    "workdir": "/home/ann",
}
OWNERS_WORDS = ("name", "comment", "admin_comment", "stdout", "stderr", "workdir")


def squeue(*jobs: dict[str, str]) -> str:
    """What squeue prints for these jobs."""
    return "".join("".join(f"{job[field]}{SEPARATOR}" for field in parse.JOB_FIELDS) + "\n" for job in jobs)


@pytest.mark.parametrize("stderr", ["", JOB["stdout"]])
def test_errors_that_go_to_the_output_have_no_file_of_their_own(stderr: str) -> None:
    """In 24.11 squeue prints nothing for them, in other versions the output's name once more."""
    (job,) = parse.parse_jobs(squeue(JOB | {"stderr": stderr}), SEPARATOR)
    assert (job.std_out, job.std_err) == (JOB["stdout"], "")


def test_a_node_with_reason_and_comment() -> None:
    """Values before the free text, the reason without its stamp, and who gave it."""
    text = f"{NODE} Reason=srobust: XID 79 [root@1795223382] Comment=for tests \n"
    (node,) = parse.parse_nodes(text)
    assert (node.name, node.state, node.flags) == ("n3", "IDLE", {"DRAIN", "NOT_RESPONDING"})
    assert (node.reason, node.reason_user, node.comment) == ("srobust: XID 79", "root", "for tests")
    assert node.reason_at_s == 1795223382
    assert (node.partitions, node.gres, node.features) == (("main", "short"), "gpu:fake:4", ("a",))
    assert (node.cpus, node.memory_mb, node.boot_at_s) == (8, 2000, 1795222297)
    assert node.drained
    assert not node.usable


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ("gpu:fake:4(IDX:0-3)", 4),
        ("gpu:a100:2(IDX:1,3),nic:1", 3),
        ("gpu:0", 0),
        ("gpu:fake:0(IDX:N/A)", 0),
        ("(null)", 0),
    ],
)
def test_how_much_of_its_gres_is_used(said: str, count: int) -> None:
    """Types, indices and several kinds; `scontrol -d` prints it."""
    (node,) = parse.parse_nodes(f"{NODE.replace(' Gres=gpu:fake:4', f' Gres=gpu:fake:4 GresUsed={said}')}\n")
    assert (node.gres, node.gres_used) == ("gpu:fake:4", count)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1).map(str.strip).filter(bool))
def test_a_reason_changes_nothing_but_itself(words: str) -> None:
    """Also where it looks like fields, stamps or comments of a node."""
    for reason in (f"srobust: {words}", f"srobust: {words} State=IDLE [x@1] Comment=forged {words}"):
        (node,) = parse.parse_nodes(f"{NODE} Reason={reason} [root@1795223382]\n")
        assert (node.reason, node.reason_user) == (reason, "root")
        assert (node.comment, node.state, node.partitions) == ("", "IDLE", ("main", "short"))


def test_a_reason_with_a_stamp_that_is_no_time() -> None:
    """Somebody's own words in that form: no time is known, and every node is read."""
    (node,) = parse.parse_nodes(f"{NODE} Reason=bad fan [x@--:] see wiki\n")
    assert (node.drained, node.reason_at_s) == (True, 0)


def test_a_comment_of_two_lines_stays_with_its_node() -> None:
    """Slurm prints an administrator's comment as it is."""
    nodes = parse.parse_nodes(f"{NODE} Comment=two\nlines\n{NODE.replace('n3', 'n4')}\n")
    assert [(node.name, node.comment) for node in nodes] == [("n3", "two\nlines"), ("n4", "")]


def test_a_reservation() -> None:
    """Times, flags, users, folded nodes."""
    (found,) = parse.parse_reservations(RESERVATION + "\n")
    assert (found.name, found.nodes, found.users, found.state) == (
        "srobust-seat-1",
        "n[3-4]",
        ("root", "cloudsdk"),
        "ACTIVE",
    )
    assert found.end_at_s - found.start_at_s == 600
    assert "NO_HOLD_JOBS_AFTER_END" in found.flags


def test_no_reservations() -> None:
    """Slurm's sentence for none is an empty list; no answer at all is an error."""
    assert parse.parse_reservations("No reservations in the system\n") == []
    for read in (parse.parse_reservations, parse.parse_nodes):
        with pytest.raises(SlurmParseError):
            read("")


def test_a_job() -> None:
    """An array task with its own raw id; what squeue prints for nothing is nothing."""
    (job,) = parse.parse_jobs(squeue(JOB), SEPARATOR)
    assert job.ref == JobRef(608, 604, 0)
    assert (job.nodes, job.user, job.uid, job.comment, job.admin_comment) == (("n1", "n2"), "ann", 1000, "", "")
    assert (job.time_limit_s, job.end_at_s, job.reason, job.exclude) == (86400, 0, "", None)


@pytest.mark.parametrize(
    ("changes", "ref", "hetjob_id"),
    [
        ({"arraytaskid": "N/A", "arrayjobid": "608"}, JobRef(608), 0),
        ({"arraytaskid": "0-9%2"}, JobRef(608, 604), 0),
        ({"arraytaskid": "N/A", "hetjobid": "606", "hetjoboffset": "1"}, JobRef(608, het_offset=1), 606),
    ],
)
def test_which_job_it_is(changes: dict[str, str], ref: JobRef, hetjob_id: int) -> None:
    """Plain jobs, the pending rest of an array (no single task), het components."""
    (job,) = parse.parse_jobs(squeue(JOB | changes), SEPARATOR)
    assert (job.ref, job.hetjob_id) == (ref, hetjob_id)


@pytest.mark.parametrize(("printed", "meant"), [("768", "3:0"), ("9", "0:9"), ("0", "0:0"), ("3:0", "3:0")])
def test_exit_codes(printed: str, meant: str) -> None:
    """22.05 prints the raw wait status."""
    (job,) = parse.parse_jobs(squeue(JOB | {"exit_code": printed}), SEPARATOR)
    assert job.exit_code == meant


@given(st.fixed_dictionaries({field: st.text(st.characters(exclude_categories=["Cs"])) for field in OWNERS_WORDS}))
def test_no_words_of_an_owner_forge_a_field_or_a_job(words: dict[str, str]) -> None:
    """Whatever the owner's words hold, they come back as they were, and the next job is as it was."""
    first, second = parse.parse_jobs(squeue(JOB | words, JOB), SEPARATOR)
    plain = parse.parse_jobs(squeue(JOB), SEPARATOR)[0]
    assert second == plain
    assert (first.ref, first.state, first.uid, first.nodes) == (plain.ref, plain.state, plain.uid, plain.nodes)
    assert first.comment == ("" if words["comment"] == "(null)" else words["comment"])
    assert first.name == words["name"]


@given(st.integers(1, len(squeue(JOB, JOB)) - 2))
def test_an_answer_that_is_cut_short_is_an_error_or_fewer_jobs(length: int) -> None:
    """No cut makes a job that was not there."""
    whole = parse.parse_jobs(squeue(JOB), SEPARATOR)[0]
    with contextlib.suppress(SlurmParseError):
        assert all(job == whole for job in parse.parse_jobs(squeue(JOB, JOB)[:length], SEPARATOR))


@pytest.mark.parametrize("text", ["garbage", "<html>502</html>\n", "1|2|3\n", "\x00\x01"])
def test_garbage_is_an_error(text: str) -> None:
    """Never an empty list."""
    with pytest.raises(SlurmParseError):
        parse.parse_jobs(text, SEPARATOR)
    with pytest.raises(SlurmParseError):
        parse.parse_nodes(text)
    with pytest.raises(SlurmParseError):
        parse.parse_reservations(text)
    with pytest.raises(SlurmParseError):
        parse.cluster_name(parse.parse_settings(text))


@given(st.text())
def test_any_text_is_read_or_refused_with_a_typed_error(text: str) -> None:
    """Nothing but SlurmParseError comes out."""
    for read in (parse.parse_nodes, parse.parse_reservations, lambda t: parse.parse_jobs(t, SEPARATOR)):
        for candidate in (text, f"NodeName={text}", f"ReservationName={text}"):
            with contextlib.suppress(SlurmParseError):
                read(candidate)


def test_the_clusters_name() -> None:
    """One line of many."""
    assert (
        parse.cluster_name(parse.parse_settings("Configuration data\nClusterName             = dev-1\nX = y\n"))
        == "dev-1"
    )


@pytest.mark.parametrize(
    ("batch", "requeue", "so"), [("1", "1", True), ("2", "1", True), ("0", "1", False), ("1", "0", False)]
)
def test_only_batch_jobs_can_be_requeued(batch: str, requeue: str, so: bool) -> None:
    """Slurm says Requeue=1 of `salloc` too, and refuses; the flag counts up when a batch job was requeued."""
    (job,) = parse.parse_jobs(squeue({**JOB, "batchflag": batch, "requeue": requeue}), SEPARATOR)
    assert job.requeueable is so


@pytest.mark.parametrize("comment", ["", " Comment=for tests"])
@pytest.mark.parametrize("after", ["", " InstanceId=i-7 InstanceType=big"])
def test_a_nodes_extra_text_is_what_stands_behind_the_comment(comment: str, after: str) -> None:
    """Newer Slurm has more fields behind it; words in it that look like fields are part of it."""
    text = "rack 7 [[srobust-fault v=1 at=1 kind=xid : Reason=x Comment=y]]"
    (node,) = parse.parse_nodes(f"{NODE} Reason=srobust: a [root@1795223382]{comment} Extra={text}{after}\n")
    assert (node.extra, node.comment, node.reason) == (text, comment.partition("=")[2], "srobust: a")
    (node,) = parse.parse_nodes(f"{NODE}{comment}{after}\n")
    assert (node.extra, node.comment) == ("", comment.partition("=")[2])


def test_the_gpus_of_a_job_are_read_by_node() -> None:
    """Ranges, several kinds and groups of nodes; none if Slurm names no GRES; nodes without numbers are left out."""
    head = "JobId=7 JobName=a UserId=a(1) JOB_GRES=gpu:fake:6   "
    first = "Nodes=n[2-3] CPU_IDs=0 Mem=0 GRES=gpu:fake:2(IDX:0,3-4),nic:1(IDX:9) "
    second = "Nodes=n5 CPU_IDs=0-7 Mem=0 GRES=gpu(IDX:7) Nodes=n6 CPU_IDs=1 Mem=2 GRES= "
    third = "Nodes=n7 CPU_IDs=1 Mem=2 GRES=gpu:fake:2 Nodes=n7 CPU_IDs=2 Mem=2 GRES= "
    own = tuple(f"n{number}" for number in range(1, 9))
    found = job_gpus.parse(f"{head}  {first}  {second}{third}MinCPUsNode=1", "a", own)
    assert found == {"n2": {0, 3, 4}, "n3": {0, 3, 4}, "n5": {7}, "n6": frozenset()}
