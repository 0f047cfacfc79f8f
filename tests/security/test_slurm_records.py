"""One job, node, reservation or past run that cannot be read hides no other one, and is named."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.slurm import accounting, parse, values
from slurm_robust.slurm.errors import SlurmParseError

SEPARATOR = "QzSecret"
HEALTHY = {
    **dict.fromkeys(parse.JOB_FIELDS, "N/A"),
    "jobid": "7",
    "state": "RUNNING",
    "batchflag": "1",
    "requeue": "1",
    "userid": "1000",
    "username": "ann",
    "partition": "main",
    "numnodes": "2",
    "nodelist": "n[1-2]",
    "timelimit": "UNLIMITED",
    "name": "train",
    "starttime": "1795745530",
    "submittime": "1795745530",
    "endtime": "NONE",
    "restartcnt": "0",
}
# What Slurm 22.05 and 24.11 were seen to take from an ordinary user: every character but NUL, in most texts.
ANY = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=60)
HOSTILE = ANY | st.sampled_from(
    [
        "\n7",
        "\nNodeName=n1 State=DOWN",
        "x Nodes=n[1-8000000] CPU_IDs=0",
        "\ufffd\ufffd",
        "a\tb|c=d",
        "\x1b[31m",
        "\x85",
    ]
)
KNOWN_TIMES = ("60481794855807", "253370764800", "6048001795140730", "-5", "N/A", "NONE", "9" * 20)
TIMES = st.sampled_from(KNOWN_TIMES) | st.integers(-(2**63), 2**64).map(str)
LIMITS = st.sampled_from(["INVALID", "19734-04:11:00", "2982611-04:17:00", "UNLIMITED", "0:00"])
BY_A_USER = st.fixed_dictionaries(
    {
        **dict.fromkeys(("name", "comment", "stdout", "stderr", "workdir", "feature", "tres-per-node"), HOSTILE),
        **dict.fromkeys(("starttime", "eligibletime", "endtime"), TIMES),
        "timelimit": LIMITS,
        "arraytaskid": st.sampled_from(["N/A", "0-3%2", "1,5,7,10,13,...", "4"]),
        "numnodes": st.sampled_from(["1", "536871", "0"]),
        "reqnodes": st.sampled_from(["", "n[1-2]"]),
    }
)


def squeue(*jobs: dict[str, str]) -> str:
    """As squeue prints these jobs."""
    return "".join("".join(job[name] + SEPARATOR for name in parse.JOB_FIELDS) + "\n" for job in jobs)


@given(BY_A_USER)
def test_whatever_slurm_takes_from_a_user_is_read(theirs: dict[str, str]) -> None:
    """Both jobs are there, the healthy one as if it were alone, and times are in the calendar."""
    (alone,) = parse.parse_jobs(squeue(HEALTHY), SEPARATOR)
    hostile = {**HEALTHY, **theirs, "jobid": "8"}
    for order in ((HEALTHY, hostile), (hostile, HEALTHY)):
        found = {job.ref.job_id: job for job in parse.parse_jobs(squeue(*order), SEPARATOR)}
        assert found.keys() == {7, 8}
        assert found[7] == alone
        for at_s in (found[8].start_at_s, found[8].end_at_s, found[8].eligible_at_s, found[8].time_limit_s or 0):
            holds(at_s)


def holds(at_s: int) -> None:
    """What the rest of the project does with times, none of which may raise."""
    assert 0 <= at_s <= values.MAX_TIME_S
    for zone in (dt.timezone.utc, dt.timezone(dt.timedelta(hours=14)), dt.timezone(dt.timedelta(hours=-12))):
        assert (dt.datetime.fromtimestamp(at_s, zone) + dt.timedelta(days=300)).strftime("%Y-%m-%d %H:%M:%S")
    assert time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
    assert json.loads(json.dumps({"at_s": at_s}))["at_s"] == at_s
    db = sqlite3.connect(":memory:")
    assert db.execute("SELECT ?, datetime(?, 'unixepoch')", (at_s, at_s)).fetchone()[0] == at_s
    db.close()


@pytest.mark.parametrize(
    "text", ["60481794855807", "253402300800", "1" * 25, "9999-12-31T23:59:59", "12345-01-01T00:00:00"]
)
def test_a_time_beyond_the_calendar_is_its_end(text: str) -> None:
    """Not an error: whoever compares it with now gets the right answer."""
    assert values.epoch_s(text) == values.MAX_TIME_S
    holds(values.epoch_s(text))


@given(st.dictionaries(st.sampled_from(parse.JOB_FIELDS[1:]), HOSTILE, max_size=4))
def test_a_job_in_another_form_is_skipped_and_named(broken: dict[str, str]) -> None:
    """Even what no user can write: an answer of a Slurm that nobody has seen hides no other job."""
    unread: list[str] = []
    found = parse.parse_jobs(squeue({**HEALTHY, "jobid": "8", **broken}, HEALTHY), SEPARATOR, unread)
    assert found[-1] == parse.parse_jobs(squeue(HEALTHY), SEPARATOR)[0]
    assert len(found) + len(unread) == 2
    assert all(text.startswith("job ") for text in unread)


def test_where_no_record_at_all_can_be_read_the_answer_has_another_form() -> None:
    """That is an error, and not a Slurm without jobs: recoveries would be given up."""
    with pytest.raises(SlurmParseError):
        parse.parse_jobs(squeue({**HEALTHY, "state": "?"}), SEPARATOR, [])
    with pytest.raises(SlurmParseError):
        parse.parse_nodes("NodeName=n1 CPUTot=1", [])


def test_nodes_and_reservations_are_read_one_by_one() -> None:
    """The one in another form is named, the others are as they were."""
    unread: list[str] = []
    good = "NodeName=n1 CPUTot=8 RealMemory=1 State=IDLE BootTime=1795745530"
    bad = "NodeName=n2 CPUTot=eight State=IDLE"
    assert parse.parse_nodes(f"{bad}\n{good}\nNodeName=n3\n", unread) == parse.parse_nodes(good)
    assert [text.partition(":")[0] for text in unread] == ["node n2", "node n3"]
    unread.clear()
    good = "ReservationName=a StartTime=1 EndTime=60481794855807 Nodes=n1"
    found = parse.parse_reservations(f"ReservationName=b EndTime=soon\n{good}\n", unread)
    assert (found, len(unread)) == (parse.parse_reservations(good), 1)
    assert found[0].end_at_s == values.MAX_TIME_S


RUN = ("7", "7", "c", "ann", "acc", "train", "main", "n1", "1", "", "", "10", "10", "20", "30", "COMPLETED", "0:0")


@given(HOSTILE, TIMES, st.sampled_from(["COMPLETED", "?"]))
def test_past_runs_are_read_one_by_one(name: str, eligible: str, state: str) -> None:
    """A run with any name and any begin is read; one in another form is named."""
    theirs = ("8", "8", "c", "bob", name, name, *RUN[6:12], eligible, "Unknown", "Unknown", state, "0:0")
    text = "".join(SEPARATOR.join(run) + "\n" for run in (theirs, RUN, theirs))
    unread: list[str] = []
    found = list(accounting.parse_past_runs(text, SEPARATOR, unread))
    (mine,) = (run for run in found if run.job_id == 7)
    assert mine == next(accounting.parse_past_runs(SEPARATOR.join(RUN) + "\n", SEPARATOR))
    assert len(unread) == (2 if state == "?" else 0)
    assert len(found) + len(unread) == 3
