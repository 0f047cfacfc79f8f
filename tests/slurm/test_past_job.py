"""Jobs that only the accounting remembers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust.config.site import SlurmConfig
from slurm_robust.core.model import JobRef
from slurm_robust.slurm.commands import CommandClient
from slurm_robust.slurm.errors import SlurmError, SlurmMissingError, SlurmParseError

Make = Callable[[str], CommandClient]
RECORD = 'printf "123%sFAILED%sann%smain%sa\\nname%s/w%s/w/%%j.out%s/w/%%j.err\\n" "$d" "$d" "$d" "$d" "$d" "$d" "$d"'
OLD = 'printf "123%sCANCELLED by 0%sann%smain%sname%s/w\\n" "$d" "$d" "$d" "$d" "$d"'

REFUSE = 'case "$*" in {}) echo "sacct: error: Invalid field requested: x" >&2; exit 1;; esac'


@pytest.fixture
def sacct(tmp_path: Path) -> Make:
    """Makes a client whose sacct is this shell script; `$d` is the divider that was asked for."""

    def make(script: str) -> CommandClient:
        path = tmp_path / "sacct"
        path.write_text(
            f'#!/bin/sh\nfor a; do case "$a" in --delimiter=*) d="${{a#--delimiter=}}";; esac; done\n{script}\n'
        )
        path.chmod(0o755)
        return CommandClient(SlurmConfig(bin_dir=str(tmp_path), conf="/some/slurm.conf", timeout_s=5.0))

    return make


def test_a_job_and_its_files(sacct: Make) -> None:
    """A name with a line end forges no field, and a requeued job's last record counts."""
    found = sacct(f"{RECORD}").past_job(JobRef(123))
    assert found is not None
    assert (found.state, found.user, found.name) == ("FAILED", "ann", "a\nname")
    assert (found.work_dir, found.std_out, found.std_err) == ("/w", "/w/%j.out", "/w/%j.err")


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("sbatch -o a-%j.out --error b.err j.sh", ("a-%j.out", "b.err")),
        ("sbatch -oa.out --error=b.err j.sh", ("a.out", "b.err")),
        ("sbatch --output=a.out --export=ALL j.sh", ("a.out", "")),
        ("sbatch -N2 j.sh -o", ("", "")),
    ],
)
def test_from_21_08_on_the_command_line_tells_the_files(sacct: Make, line: str, files: tuple[str, str]) -> None:
    """Where they were given there, in each of sbatch's ways."""
    record = OLD.replace("/w", "/w%s%s") + f' "$d" "{line}"'
    found = sacct(f"{REFUSE.format('*StdOut*')}\n{record}").past_job(JobRef(123))
    assert found is not None
    assert (found.work_dir, found.std_out, found.std_err) == ("/w", *files)


def test_an_older_slurm_knows_the_folder_only(sacct: Make) -> None:
    """It refuses the newer fields; it is asked again without them."""
    found = sacct(f"{REFUSE.format('*StdOut*|*SubmitLine*')}\n{OLD}").past_job(JobRef(123))
    assert found is not None
    assert (found.state, found.work_dir, found.std_out) == ("CANCELLED", "/w", "")


def test_nobody_knows_the_job(sacct: Make) -> None:
    """An empty answer is no job."""
    assert sacct("exit 0").past_job(JobRef(123)) is None


def test_no_accounting_is_an_error(sacct: Make, tmp_path: Path) -> None:
    """With Slurm's own message; so is a command that is not there, and an answer of another form."""
    with pytest.raises(SlurmError, match="accounting storage is disabled"):
        sacct('echo "Slurm accounting storage is disabled" >&2; exit 1').past_job(JobRef(123))
    with pytest.raises(SlurmParseError):
        sacct("echo hello").past_job(JobRef(123))
    (tmp_path / "sacct").unlink()
    with pytest.raises((SlurmMissingError, OSError)):
        CommandClient(SlurmConfig(bin_dir=str(tmp_path), timeout_s=5.0)).past_job(JobRef(123))
