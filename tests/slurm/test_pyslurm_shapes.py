"""The pyslurm back end with modules in the shapes of real releases; no cluster is needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyslurm_world import OLD, World

from slurm_robust.core.model import JobRef
from slurm_robust.slurm.client import NodeLine, Reservation, SlurmClient
from slurm_robust.slurm.errors import SlurmNotFoundError, SlurmParseError
from slurm_robust.slurm.pyslurm_backend import PyslurmClient
from slurm_robust.slurm.pyslurm_fit import BY_COMMAND


def test_25_11_2_lacks_nothing_that_is_not_declared(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It has none of the older functions; every read is its own, and no warning is written."""
    client = world.client()
    assert (client.cluster_name(), len(client.nodes()), len(client.jobs())) == ("devil", 2, 6)
    assert client.reservations()[0].name == "seat"
    about = client.about()
    assert (about.name, about.version, about.slurm, about.problem) == ("pyslurm", "25.11.2", "25.11.8", "")
    assert about.lacking == ()
    assert about.by_command == BY_COMMAND
    declared = ("squeue -h --all -t all", "sinfo -h --all --local -O")
    assert not [c for c in world.commands() if not c.startswith(declared)], "exit codes and resources in use"
    assert not caplog.records


def test_every_call_is_pyslurms_or_declared() -> None:
    """A call that the client inherits from the commands stands in the table, and no other does without a case."""
    calls = {name for name in vars(SlurmClient) if not name.startswith("_")}
    own = {name for name in calls if name in vars(PyslurmClient)}
    always = {detour.call for detour in BY_COMMAND if not detour.when}
    assert always == calls - own
    assert {detour.call for detour in BY_COMMAND if detour.when} <= own


def test_nodes_and_jobs_are_read_as_the_commands_read_them(world: World) -> None:
    """Every value, also those that pyslurm has under another name or in another form."""
    client = world.client()
    node = client.nodes()[0]
    assert (node.name, node.state, node.flags, node.reason, node.reason_user) == (
        "n1",
        "IDLE",
        {"DRAIN"},
        "srobust: x",
        "root",
    )
    assert (node.gres, node.gres_used, node.comment, node.extra) == ("gpu:fake:2", 1, "by hand", "")
    job = client.job(JobRef(7))
    assert job is not None
    assert (job.state, job.user, job.nodes, job.num_nodes, job.reason) == ("RUNNING", "root", ("n1", "n2"), 2, "")
    assert (job.comment, job.admin_comment, job.exclude, job.req_nodes) == ("own words", "", "n4", "")
    assert (job.time_limit_s, job.end_at_s, job.gres, job.features) == (3600, 3620, "gpu:1", "a,b")
    assert (job.std_out, job.std_err, job.work_dir, job.exit_code) == ("/out", "/err", "/work", "0:0")


def test_sinfo_tells_how_many_generic_resources_are_in_use(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pyslurm knows it only where the accounting tracks them; a listing and a whole reading must not differ in it."""
    line = NodeLine("IDLE", frozenset(), "", "", 0, "", "", 2)
    monkeypatch.setattr(PyslurmClient, "node_listing", lambda _: {line: frozenset({"n2"})})
    assert {node.name: node.gres_used for node in world.client().nodes()} == {"n1": 1, "n2": 2}


def test_a_drained_node_that_is_used_in_part_keeps_its_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing says ALLOCATED of it, a whole reading MIXED."""
    world.trouble("untracked")
    line = NodeLine("ALLOCATED", frozenset({"DRAIN"}), "", "", 0, "", "", 2)
    monkeypatch.setattr(PyslurmClient, "node_listing", lambda _: {line: frozenset({"n2"})})
    node = world.client().nodes()[1]
    assert (node.state, node.flags, node.gres_used) == ("MIXED", {"DRAIN"}, 2)


def test_a_job_that_starts_between_two_readings_leaks_no_resources(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle for pyslurm, in use for sinfo a moment later: an idle node with lost resources would be an alert."""
    line = NodeLine("ALLOCATED", frozenset(), "", "", 0, "", "", 2)
    monkeypatch.setattr(PyslurmClient, "node_listing", lambda _: {line: frozenset({"n2"})})
    assert {node.name: node.gres_used for node in world.client().nodes()} == {"n1": 1, "n2": 1}


def test_a_sinfo_that_cannot_be_read_leaves_pyslurms_nodes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would add is less than the nodes."""

    def listing(_: PyslurmClient) -> None:
        raise SlurmParseError("sinfo's answer is cut short or in another form")

    monkeypatch.setattr(PyslurmClient, "node_listing", listing)
    assert [node.name for node in world.client().nodes()] == ["n1", "n2"]


def test_task_0_of_an_array_and_part_0_of_a_het_job_are_told_apart(world: World) -> None:
    """It reads 0 as none; the pending rest of an array has no task."""
    client = world.client()
    refs = {job.ref.job_id: job.ref for job in client.jobs()}
    assert (refs[9], refs[10]) == (JobRef(9, 8, 0), JobRef(10, 8, 2))
    assert refs[8] == JobRef(8, 8, None)
    assert refs[11] == JobRef(11, het_offset=0)
    found = client.job(JobRef.parse("8_0"))
    assert found is not None
    assert found.ref.job_id == 9


def test_a_comment_that_is_no_utf_8_is_read_with_its_foreign_bytes_replaced(world: World) -> None:
    """Reading it raises; one job's comment costs neither the list nor the comment."""
    world.trouble("foreign_bytes")
    client = world.client()
    assert {job.comment for job in client.jobs()} == {"a \ufffd b"}
    assert client.about().lacking == ()


def test_a_job_without_steps_is_read(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """`Job.load` reads steps too, and raises KeyError where it finds none."""
    world.trouble("no_steps")
    client = world.client()
    found = client.job(JobRef(7))
    assert found is not None
    assert not caplog.records


def test_an_exit_code_that_may_be_128_more_is_asked_of_the_command_once(world: World) -> None:
    """130 reads as 2: the code is empty rather than wrong where the command does not know it either."""
    client = world.client()
    for _ in range(2):
        assert next(job for job in client.jobs() if job.ref.job_id == 12).exit_code == ""
    assert world.commands() == ["squeue -h --all -t all"]


def test_changes_are_pyslurms_where_it_can(world: World) -> None:
    """Nodes, jobs and reservations; a reservation's length counts from its start."""
    client = world.client()
    job = JobRef(7)
    client.drain("n[1-2]", "srobust: y")
    client.set_node_extra("n1", "marker")
    client.requeue(job)
    client.release(job)
    client.update_job(job, comment="c", exclude="n[1-2]", time_limit_min=5)
    client.cancel(job)
    client.create_reservation("r", "n1", ("ann", "bob"), 10, ("FLEX", "NO_HOLD_JOBS_AFTER_END"))
    client.update_reservation("seat", nodes="n3", duration_min=2)
    client.delete_reservation("seat")
    assert world.asked() == [
        ["modify node", "n[1-2]", {"state": "DRAIN", "reason": "srobust: y"}],
        ["modify node", "n1", {"extra": "marker"}],
        ["requeue", 7, False],
        ["release", 7],
        ["modify job", 7, {"comment": "c", "excluded_nodes": ["n[1-2]"], "time_limit": 5}],
        ["cancel", 7],
        ["create", "r", "n1", ["ann", "bob"], 600, ["FLEX", "NO_JOB_HOLD_AFTER_END"]],
        ["modify reservation", "seat", {"nodes": "n3", "end_time": 130}],
        ["delete", "seat"],
    ]
    assert world.commands() == []
    with pytest.raises(SlurmNotFoundError, match="reservation is invalid"):
        client.update_reservation("nope", nodes="n1")


def test_steps_are_signalled_by_the_command(world: World) -> None:
    """`JobStep(job, step)` of pyslurm signals nothing, and says nothing."""
    world.client().signal(JobRef(7), "KILL", "0")
    assert world.commands() == ["scancel -s KILL 7.0"]


CLEARING: dict[str, Callable[[SlurmClient], None]] = {
    "a job's comment": lambda client: client.update_job(JobRef(7), comment=""),
    "a job's excluded nodes": lambda client: client.update_job(JobRef(7), exclude=""),
    "a job's reservation": lambda client: client.update_job(JobRef(7), reservation="", comment="kept"),
    "a node's comment": lambda client: client.set_node_comment("n1", ""),
    "a node's extra text": lambda client: client.set_node_extra("n1", ""),
}


@pytest.mark.parametrize("what", CLEARING)
def test_clearing_goes_by_the_command(world: World, what: str) -> None:
    """By pyslurm nothing would be done, and nothing said."""
    CLEARING[what](world.client())
    assert world.asked() == []
    assert len(world.commands()) == 1
    assert world.commands()[0].startswith("scontrol update ")


def test_one_task_of_an_array_goes_by_the_command(world: World) -> None:
    """A number would mean all of them."""
    client = world.client()
    task = JobRef.parse("8_2")
    client.requeue(task)
    client.release(task)
    client.cancel(task)
    client.update_job(task, comment="c")
    assert world.asked() == []
    assert [line.split()[-1] for line in world.commands()] == ["8_2", "8_2", "8_2", "Comment=c"]


def test_an_unknown_job_is_not_found_though_pyslurm_cancels_it_silently(world: World) -> None:
    """The job is read first."""
    with pytest.raises(SlurmNotFoundError):
        world.client().cancel(JobRef(999))
    assert world.asked() == []


def test_a_flag_that_pyslurm_does_not_know_goes_by_the_command(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Reading one (REPLACE_DOWN), and asking for one; it is declared, so nothing is said."""
    world.trouble("replace_down")
    client = world.client()
    client.create_reservation("r", "n1", ("ann",), 10, ("REPLACE_DOWN",))
    with pytest.raises(Exception, match="scontrol's answer"):
        client.reservations()  # the script's answer is empty
    assert [line.split()[1] for line in world.commands()] == ["create", "show"]
    assert world.asked() == []
    assert (client.about().lacking, caplog.records) == ((), [])


def test_22_5_has_its_reservations_by_functions(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It has no Reservation; a flag that does not fit its C int goes by the command."""
    client = world.client(OLD, "22.05.8")
    assert client.cluster_name() == "devil"
    assert client.reservations() == [
        Reservation("seat", "n[1-2]", ("ann",), frozenset({"FLEX", "OVERLAP"}), 10, 20, "INACTIVE")
    ]
    client.create_reservation("r", "n1", ("ann", "bob"), 10, ("FLEX", "IGNORE_JOBS"))
    client.create_reservation("s", "n1", ("ann",), 10, ("NO_HOLD_JOBS_AFTER_END",))
    client.update_reservation("seat", nodes="n3", duration_min=2)
    with pytest.raises(SlurmNotFoundError, match="reservation is invalid"):
        client.delete_reservation("seat")
    assert world.asked() == [
        ["create", {"name": "r", "node_list": "n1", "users": "ann,bob", "duration": 10, "flags": 6}],
        ["update", {"name": "seat", "start_time": -1, "node_list": "n3", "duration": 2}],
    ]
    assert [line.split()[1:3] for line in world.commands()] == [["create", "reservation"]]
    assert (client.about().problem, client.about().lacking, caplog.records) == ("", (), [])
