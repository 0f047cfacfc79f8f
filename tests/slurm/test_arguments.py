from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.slurm import arguments
from slurm_robust.slurm.errors import SlurmRefusedError


@given(st.text(max_size=60))
def test_what_passes_is_one_word_without_an_equals_sign(text: str) -> None:
    """Node lists, names, flags, signals and steps can never become a second argument or an option."""
    for check in (
        arguments.node_list,
        arguments.name,
        lambda t: arguments.names([t]),
        lambda t: arguments.flags([t]),
        arguments.signal,
        arguments.step,
    ):
        with contextlib.suppress(SlurmRefusedError):
            passed = check(text)
            assert passed.isascii()
            assert not set(passed) & set(" =\t\r\n\0\"'")
            assert not passed.startswith("-")


@given(st.text(max_size=60))
def test_a_reason_is_one_line_of_ours(text: str) -> None:
    """It passes unchanged, and only with the prefix and without control characters."""
    with contextlib.suppress(SlurmRefusedError):
        passed = arguments.reason(text)
        assert passed == text
        assert passed.startswith("srobust:")
    if text.isprintable():
        assert arguments.reason(f"srobust: {text}") == f"srobust: {text}"


@pytest.mark.parametrize("name", ["ann", "ann.b-1", "ann@corp.example", "CORP\\ann", "CORP+ann"])
def test_users_are_named_as_directories_name_them(name: str) -> None:
    """A seat is opened for the user of its job, whose name may have the directory's domain in it."""
    assert arguments.names([name]) == name


def test_a_job_may_be_given_several_reservations() -> None:
    """Each is a plain name; an empty text takes the job out of all."""
    assert arguments.update_words({"reservation": "a,b"}) == ["ReservationName=a,b"]
    assert arguments.update_words({"reservation": ""}) == ["ReservationName="]
    with pytest.raises(SlurmRefusedError):
        arguments.update_words({"reservation": "a,b c"})


@pytest.mark.parametrize(("said", "name"), [("KILL", "KILL"), ("sigterm", "TERM"), ("9", "9"), ("SIGUSR1", "USR1")])
def test_signals(said: str, name: str) -> None:
    """By name, with SIG or without, or by number."""
    assert arguments.signal(said) == name


@pytest.mark.parametrize("text", ["0", "-9", "KILL 1", "", "100"])
def test_what_is_no_signal(text: str) -> None:
    """Refused."""
    with pytest.raises(SlurmRefusedError):
        arguments.signal(text)


@pytest.mark.parametrize("text", ["batch", "extern", "0 1", "", "-1", "1.2"])
def test_only_numbered_steps(text: str) -> None:
    """The batch and extern steps are not ours."""
    with pytest.raises(SlurmRefusedError):
        arguments.step(text)


@pytest.mark.parametrize("value", [0, -1, 10**6])
def test_minutes_out_of_range(value: int) -> None:
    """A reservation lasts a year at most."""
    with pytest.raises(SlurmRefusedError):
        arguments.minutes(value)
