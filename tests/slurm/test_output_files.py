"""Slurm's patterns in the names of output files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_robust.core.model import JobRef
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.output_files import existing_output, expanded, output_patterns


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


def test_the_file_of_a_running_job_is_found_behind_slurms_pattern(tmp_path: Path) -> None:
    """Slurm 22.05 tells `o-%j.out`. A job without a script has none; a name that fits several files is none."""
    written = job(std_out=f"{tmp_path}/o-%j.out")
    assert existing_output(written) is None
    (tmp_path / "o-123.out").touch()
    assert existing_output(written) == tmp_path / "o-123.out"
    assert existing_output(replace(written, batch=False)) is None
    (tmp_path / "123-a").touch()
    (tmp_path / "123-b").touch()
    assert existing_output(job(std_out=f"{tmp_path}/%j-%s")) is None
    assert existing_output(job()) is None
