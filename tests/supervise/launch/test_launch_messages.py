"""What launcher and supervisor send each other."""

from __future__ import annotations

from typing import get_args

import pytest

from slurm_robust.supervise.launch import messages as m

REPORTED: list[m.ToSupervisor] = [
    m.LauncherReady(),
    m.StartedEarly("1.0.7.1", "ab12", "/ck/step-7", 7, True, "3-5", ("step-8 was passed over",), {"/out": 12}),
    m.SrunStarted("1.0.1", 7, ("n1",)),
    m.SrunStarted("1.0.1", 7),
    m.SrunSignalled("1.0.1", 15, 0.25),
    m.SrunEnded("1.0.1", 9, ("n1", "n2")),
    m.WarmEnded("1.0.2", 9, "srun: error"),
]
ORDERED: list[m.ToLauncher] = [
    m.LaunchSrun("1.0.1", ("srun", "x"), {"A": "b"}, ("C",), ("n1",)),
    m.KillSrun(),
    m.ExitWith(3),
    m.WaitForRequeue(("python", "-m", "x"), 4.0),
    m.SupervisorAlive(),
    m.SupervisorPrepares(60.0),
    m.StartWarm("1.0.2", ("srun", "x"), {"A": "b"}, ("C",)),
    m.AdoptWarm("1.0.2", ("n1",)),
    m.EndWarm("1.0.2"),
]


def test_every_message_arrives_as_it_was_sent() -> None:
    """One line each, and none is left out here."""
    assert [m.to_supervisor(m.encode(message)) for message in REPORTED] == REPORTED
    assert [m.to_launcher(m.encode(message)) for message in ORDERED] == ORDERED
    assert {type(message) for message in REPORTED} == set(get_args(m.ToSupervisor))
    assert {type(message) for message in ORDERED} == set(get_args(m.ToLauncher))
    assert all(m.encode(message).count(b"\n") == 1 for message in (*REPORTED, *ORDERED))


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "{}", '{"do": "dance"}', '{"do": "exit"}', '{"do": "exit", "code": "x"}']
)
def test_what_is_no_message_is_refused(line: str) -> None:
    """Half a line, another kind, a missing field."""
    with pytest.raises(ValueError):  # noqa: PT011 (json's own, too)
        m.to_launcher(line)
