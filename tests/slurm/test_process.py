from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.slurm import process
from slurm_robust.slurm.errors import SlurmMissingError, SlurmTimeoutError

ENV = {"PATH": os.environ["PATH"]}


def test_what_a_command_says_and_how_it_ends() -> None:
    """Both streams, stdin, and the exit code."""
    done = process.run(["sh", "-c", "cat; echo e >&2; exit 3"], timeout_s=5, env=ENV, stdin="in")
    assert (done.code, done.out, done.err) == (3, "in", "e\n")


def test_a_grandchild_that_left_the_group_does_not_hold_the_call(tmp_path: Path) -> None:
    """It keeps the pipes open; the call ends all the same, soon after its deadline."""
    note = tmp_path / "pid"
    began_s = time.monotonic()
    with pytest.raises(SlurmTimeoutError):
        process.run(["setsid", "-f", "sh", "-c", f"echo $$ > {note}; exec sleep 300"], timeout_s=0.3, env=ENV)
    assert time.monotonic() - began_s < 60
    os.kill(int(note.read_text()), signal.SIGKILL)


def test_output_that_is_no_utf_8_is_read() -> None:
    """Owners choose what stands in a comment."""
    assert process.run(["printf", "a\\377b"], timeout_s=5, env=ENV).out == "a\ufffdb"


def test_a_file_that_cannot_be_executed_is_missing(tmp_path: Path) -> None:
    """As good as not there."""
    path = tmp_path / "scontrol"
    path.write_text("#!/bin/sh\n")
    with pytest.raises(SlurmMissingError, match="Permission denied"):
        process.run([str(path)], timeout_s=5, env=ENV)


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,12}", fullmatch=True), st.just("x")))
def test_only_what_says_where_slurm_is_stays(environ: dict[str, str]) -> None:
    """Slurm's own variables go, everybody else's stay."""
    noise = {"SLURM_JOB_ID": "1", "SQUEUE_FORMAT": "%i", "SBATCH_QOS": "q", "SLURM_JWT": "t", "SLURM_CONF": "/c"}
    kept = process.scrubbed(environ | noise)
    assert not {"SLURM_JOB_ID", "SQUEUE_FORMAT", "SBATCH_QOS"} & kept.keys()
    assert (kept["SLURM_JWT"], kept["SLURM_CONF"]) == ("t", "/c")
    assert {key for key in environ if not key.startswith("S")} <= kept.keys()
    assert process.scrubbed(noise, "/own")["SLURM_CONF"] == "/own"
