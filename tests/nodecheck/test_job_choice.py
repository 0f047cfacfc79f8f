from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.engine.context import job_choice_of
from slurm_robust.nodecheck.stages.stage_run import logger

HOSTILE = [
    "",
    "On",
    "on ",
    "on\n",
    "act",
    "on\nsrobust-prolog: draining n1",
    "$(reboot)",
    "'; rm -rf /; '",
    '"',
    "../../etc/shadow",
    "on" * 5000,
]


@pytest.mark.parametrize("mode", ["on", "observe", "off"])
def test_what_the_plugin_sends_is_taken(mode: str) -> None:
    """The job's choice, as it stands in the prolog's words."""
    assert job_choice_of({"SPANK_ROBUST_MODE": mode}) == f"robust={mode}"
    assert job_choice_of({"SPANK_ROBUST_MODE": mode, "SPANK_ROBUST_SPARES": "2"}) == f"robust={mode} spares=2"


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_anything_else_is_no_choice(value: str) -> None:
    """Users' words never reach root's log or commands."""
    assert job_choice_of({"SPANK_ROBUST_MODE": value}) == ""
    assert job_choice_of({"SPANK_ROBUST_MODE": "on", "SPANK_ROBUST_SPARES": value}) == "robust=on"


@given(st.text(max_size=50), st.text(max_size=50))
def test_whatever_stands_there_the_words_are_ours(mode: str, spares: str) -> None:
    """One of three modes, digits, or nothing."""
    said = job_choice_of({"SPANK_ROBUST_MODE": mode, "SPANK_ROBUST_SPARES": spares})
    assert said == "" or (said.isascii() and said.isprintable() and len(said) < 40)


def test_the_log_names_the_job_and_its_choice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that an on-call finds by the job."""
    monkeypatch.setattr("syslog.syslog", lambda *a: None)
    logger("srobust-prolog", {"SLURM_JOB_ID": "12", "SPANK_ROBUST_MODE": "on"})("n1 is unfit")
    logger("srobust-prolog", {"SLURM_JOB_ID": "12", "SPANK_ROBUST_MODE": "on\nx"})("n1 is unfit")
    assert (
        capsys.readouterr().err
        == "srobust-prolog: job 12 (robust=on): n1 is unfit\nsrobust-prolog: job 12: n1 is unfit\n"
    )
