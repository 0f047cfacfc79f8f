from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.checks.network import chrony
from slurm_robust.nodecheck.engine import runner
from slurm_robust.nodecheck.engine.context import Context

GOOD = (
    "C0A80001,192.168.0.1,3,1763700000.123456789,{offset},0.000001,0.000020,-12.345,0.001,0.020,"
    "{delay},{disp},64.2,{leap}\n"
)


def line(offset: str = "-0.000012", delay: str = "0.000400", disp: str = "0.000900", leap: str = "Normal") -> str:
    """What `chronyc -c tracking` prints."""
    return GOOD.format(offset=offset, delay=delay, disp=disp, leap=leap)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (f"printf '{line()}'", ("pass", "synchronised")),
        (f"printf '{line(leap='Insert second')}'", ("pass", "synchronised")),
        (f"printf '{line(leap='Not synchronised')}'", ("warn", "not_synchronised")),
        (f"printf '{line(offset='0.0512')}'", ("warn", "clock_off")),
        (f"printf '{line(offset='-0.0512')}'", ("warn", "clock_off")),
        (f"printf '{line(disp='0.7')}'", ("warn", "clock_uncertain")),
        (f"printf '{line(delay='1.2')}'", ("warn", "clock_uncertain")),
        ("echo 506 Cannot talk to daemon; exit 1", ("skip", "no_chronyd")),
        ("echo garbage", ("skip", "no_chronyd")),
        ("sleep 60", ("skip", "chrony_silent")),
        ('[ "$LC_ALL$LD_PRELOAD$*" = "C-n -c tracking" ] || exit 3; ' + f"printf '{line()}'", ("pass", "synchronised")),
    ],
)
def test_what_chronyc_says(
    script: str, expected: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only warns; a chronyc without its daemon is nothing to look at. Nothing of our environment reaches it."""
    program = tmp_path / "chronyc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(chrony, "CANDIDATES", (str(tmp_path / "none"), str(program)))
    monkeypatch.setitem(os.environ, "LC_ALL", "de_DE.UTF-8")
    options = {"chrony": {"timeout_s": 0.5 if "sleep" in script else 10.0}}
    finding = runner.run([chrony.check], Context("n1"), options, 15.0).results[0].finding
    assert (finding.status.value, finding.reason) == expected


def test_without_chrony_and_in_a_saved_tree_there_is_nothing_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ways to keep the time are the check `clock`'s to judge."""
    monkeypatch.setattr(chrony, "CANDIDATES", ("/none/chronyc",))
    for context in (Context("n1"), Context("n1", root=Path("/none"))):
        assert runner.run([chrony.check], context, {}, 10.0).results[0].finding.reason == "no_chrony"


@given(st.text(max_size=200) | st.lists(st.sampled_from(["1", "-0.5", "nan", "inf", "x", "", "1e400"])).map(",".join))
def test_any_answer_is_read(text: str) -> None:
    """Truncated or odd answers are none, and no number that is none gets through."""
    said = chrony.parse(text)
    if said is not None:
        assert chrony.judge({"installed": True, "said": said, "error": ""}, chrony.check.settings({})).sentence
        assert abs(said["offset_s"]) < 1e12
