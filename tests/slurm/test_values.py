from __future__ import annotations

import contextlib
import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.slurm import values
from slurm_robust.slurm.errors import SlurmParseError

NODE_NAMES = st.lists(st.integers(1, 400).map(lambda i: f"gpu-a{i}"), min_size=1, unique=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93784),
        ("02:03:04", 7384),
        ("03:04", 184),
        ("5", 300),
        ("2-5", 190800),
        ("365-00:00:00", 31536000),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("N/A", None),
    ],
)
def test_durations(text: str, seconds: int | None) -> None:
    """Each of Slurm's forms, with days and without."""
    assert values.duration_s(text) == seconds


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_every_duration_that_slurm_prints_comes_back(days: int, hours: int, minutes: int, seconds: int) -> None:
    """`D-HH:MM:SS` and `HH:MM:SS` are the same seconds again."""
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    clock = f"{hours:02}:{minutes:02}:{seconds:02}"
    assert values.duration_s(f"{days}-{clock}" if days else clock) == total


@given(st.integers(0, 2**33))
def test_a_time_is_the_same_as_epoch_and_as_iso_in_utc(at_s: int) -> None:
    """Both forms that Slurm prints under the settings of our calls."""
    iso = dt.datetime.fromtimestamp(at_s, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    assert values.epoch_s(str(at_s)) == values.epoch_s(iso) == at_s


@pytest.mark.parametrize("text", ["Unknown", "N/A", "NONE", "None", "(null)", ""])
def test_no_time_is_zero(text: str) -> None:
    """Slurm's words for none."""
    assert values.epoch_s(text) == 0


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_with_a_typed_error(text: str) -> None:
    """Nothing but SlurmParseError comes out of text that is not Slurm's."""
    for read in (values.epoch_s, values.duration_s, values.expand, values.node_state):
        with contextlib.suppress(SlurmParseError):
            read(text)


@given(NODE_NAMES)
def test_folding_and_expanding_node_names_agree(names: list[str]) -> None:
    """What is folded expands to the same nodes."""
    assert set(values.expand(values.fold(names))) == set(names)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("(null)", ()),
        ("n1", ("n1",)),
        ("n[1-3,7]", ("n1", "n2", "n3", "n7")),
        ("rack[1-2]n[08-09]", ("rack1n08", "rack1n09", "rack2n08", "rack2n09")),
        ("login,n[1-2]", ("login", "n1", "n2")),
    ],
)
def test_node_lists(text: str, names: tuple[str, ...]) -> None:
    """Folded lists, with leading zeros and more than one range."""
    assert values.expand(text) == names


@pytest.mark.parametrize("text", ["n[1-", "@all", "n1!n2", "n1 n2", "n[1-3]&n2", "n[a-b]", "n1,,n2", ","])
def test_what_is_no_node_list_is_refused(text: str) -> None:
    """ClusterShell's set operators and groups are not Slurm's."""
    with pytest.raises(SlurmParseError):
        values.expand(text)


@pytest.mark.parametrize(
    ("text", "base", "flags"),
    [
        ("IDLE", "IDLE", set()),
        ("MIXED+DRAIN+NOT_RESPONDING*", "MIXED", {"DRAIN", "NOT_RESPONDING"}),
        ("IDLE+MAINTENANCE+RESERVED", "IDLE", {"MAINTENANCE", "RESERVED"}),
        ("DOWN*", "DOWN", {"NOT_RESPONDING"}),
        ("idle~", "IDLE", {"POWERED_DOWN"}),
        ("idle#", "IDLE", {"POWERING_UP"}),
        ("idle!", "IDLE", {"POWERING_DOWN"}),
        ("idle%", "IDLE", {"POWERING_DOWN"}),
        ("alloc$", "ALLOC", {"MAINTENANCE"}),
        ("allocated@", "ALLOCATED", {"REBOOT_ISSUED"}),
        ("drained*", "IDLE", {"DRAIN", "NOT_RESPONDING"}),
        ("draining", "ALLOCATED", {"DRAIN"}),
        ("FUTURE", "FUTURE", set()),
    ],
)
def test_node_states_are_split(text: str, base: str, flags: set[str]) -> None:
    """Base state and flags of scontrol's long and sinfo's short forms."""
    assert values.node_state(text) == (base, frozenset(flags))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("5_[1-897:7]", [",".join(map(str, range(1, 900, 7)))]),
        ("5_[0-9:4%3]\n5_10\n15_[1-3]", ["0,4,8"]),
        ("5_[3,5,7-9%2]", ["3,5,7-9"]),
        ("5_[1-4001:2]", [",".join(map(str, range(at, min(at + 2000, 4002), 2))) for at in (1, 2001, 4001)]),
        ("", []),
    ],
)
def test_the_waiting_tasks_of_an_array_have_no_steps(text: str, pieces: list[str]) -> None:
    """Scontrol says `Invalid job id` to `5_[1-897:7]`, as squeue writes it; a word of a command line is not endless."""
    assert values.array_tasks(text, 5) == pieces
