"""Slurm's patterns in the names of output files."""

from __future__ import annotations

import pytest

from slurm_robust.core.model import JobRef
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.output_files import expanded, output_patterns


def job(ref: str = "123", **known: str) -> Job:
    """A job of Ann's."""
    return Job(JobRef.parse(ref, 130), "RUNNING", "ann", 1, "main", name="tr", batch_host="n1.lan", **known)


@pytest.mark.parametrize(
    ("name", "ref", "path"),
    [
        ("/w/slurm-%j.out", "123", "/w/slurm-123.out"),
        ("/w/%A_%a.out", "123_4", "/w/123_4.out"),
        ("/w/%6j-%3a", "123_4", "/w/000130-004"),
        ("/w/%u-%x-%N-%%j", "123", "/w/ann-tr-n1-%j"),
        ("/w/%s-%j", "123", "/w/*-123"),
        ("/w/a[1]%q", "123", "/w/a[[]1]%q"),
    ],
)
def test_patterns_are_filled_in(name: str, ref: str, path: str) -> None:
    """What is not known matches anything; what is no pattern stays, also where `glob` would read it."""
    assert expanded(name, job(ref)) == path


def test_files_of_a_job() -> None:
    """Stdout first, a file once, names relative to the job's directory, the default where nothing is known."""
    assert output_patterns(job(std_out="/w/a", std_err="/w/a")) == ("/w/a",)
    assert output_patterns(job(std_out="/w/a", std_err="b", work_dir="/d")) == ("/w/a", "/d/b")
    assert output_patterns(job(work_dir="/d")) == ("/d/slurm-123.out",)
    assert output_patterns(job("123_4", work_dir="/d")) == ("/d/slurm-123_4.out",)
    assert output_patterns(job()) == ()
