"""An attack on the pages that a command writes where its user says: the name is a stranger's link or pipe."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from other_user import ATTACKER, VICTIM, acting_as, as_user, home_of, needs_root, shared_folder

from slurm_robust.cli.page_file import write_page


@needs_root
@pytest.mark.parametrize("mode", [0o1777, 0o2770], ids=["as /tmp", "a project's"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_page_is_not_written_through_a_strangers_name(tmp_path: Path, mode: int, kind: str) -> None:
    """In /tmp it cannot be removed, which is said; in a project's folder the page takes its place."""
    shared, home = shared_folder(tmp_path / "shared", mode), home_of(VICTIM, tmp_path / "home")
    bashrc, page = home / ".bashrc", shared / "report.html"
    bashrc.write_text("# mine\n")
    os.chown(bashrc, VICTIM, VICTIM)
    as_user(ATTACKER, lambda: page.symlink_to(bashrc) if kind == "link" else os.mkfifo(page))
    with acting_as(VICTIM):
        if mode == 0o1777:
            with pytest.raises(click.ClickException, match="was not written"):
                write_page(page, "$(touch /tmp/owned)")
        else:
            write_page(page, "$(touch /tmp/owned)")
    assert bashrc.read_text() == "# mine\n"
    assert page.is_file() == (mode != 0o1777 or kind == "link")
