"""Hole 13: no text of a user's acts on the terminal of who reads it; and no FILE that is none holds a command."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import unicodedata
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.cli.commands.diagnose import command as diagnose
from slurm_robust.cli.table import plain
from slurm_robust.core.text import printable
from slurm_robust.diagnose.log.lines import read_regular

ACTING = "\x07\x08\x1b\x7f\x85\x90\x9b\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff"


def acts(text: str) -> set[str]:
    """Characters in it that a terminal or a page takes for more than a picture."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t"}


@given(st.text(alphabet=st.characters() | st.sampled_from(ACTING)))
def test_what_is_printed_acts_nowhere(text: str) -> None:
    """Whatever the text, and as long as it was."""
    for shown in (printable(text, keep="\n\t"), printable(text), plain(text)):
        assert not acts(shown)
        assert len(shown) == len(text)


@pytest.mark.parametrize("argv", [["page"], ["log"], ["log", "--json"]], ids=" ".join)
def test_a_log_acts_on_no_terminal(argv: list[str], tmp_path: Path) -> None:
    """Control characters of either set, and marks that turn the direction, are shown as others by every output."""
    log = tmp_path / "slurm-1.out"
    lines = (f"step {n}{c} loss 1\nRuntimeError: {c}evil{c} out of memory\n" for n, c in enumerate(ACTING))
    log.write_text("".join(lines), encoding="utf-8")
    result = CliRunner().invoke(diagnose, [*argv, str(log)])
    assert result.exit_code in (0, 1), result.output
    assert "evil" in result.output
    assert not acts(result.output)


@pytest.mark.parametrize("command", ["diagnose log", "diagnose page", "localize --timings", "diagnose rules --check"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_file_that_is_none_is_not_waited_for(command: str, kind: str, tmp_path: Path) -> None:
    """A pipe without a writer, and a device without an end, get a sentence."""
    path = Path("/dev/zero")
    if kind == "fifo":
        path = tmp_path / "pipe"
        os.mkfifo(path)
    argv = [sys.executable, "-m", "slurm_robust.cli.main", *command.split(), str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert "not a regular file" in done.stdout + done.stderr


def test_a_pipe_of_the_shell_is_read_to_its_end() -> None:
    """`srobust diagnose <(zcat log.gz)` waits for its writer."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as file:
        later = threading.Timer(0.2, lambda: (file.write(b"late"), file.close()))
        later.start()
        assert read_regular(Path(f"/dev/fd/{reading}"), 100) == b"late"
        later.join()
    os.close(reading)
