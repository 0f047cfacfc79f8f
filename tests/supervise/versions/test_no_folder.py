"""A job with `--robust-code` whose folder cannot be made."""

from __future__ import annotations

import asyncio
from pathlib import Path

from supervised import World

from slurm_robust.supervise.supervisor import Supervisor


def test_a_folder_that_cannot_be_made_holds_no_launch(tmp_path: Path) -> None:
    """Who may exchange it cannot be seen then: there is no snapshot, and the ranks run from the code itself."""
    (tmp_path / "no folder").touch()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").touch()
    command = f"-N2 python {tmp_path}/project/train.py"
    world = World(tmp_path / "no folder" / "job", command=command, code_dir=str(tmp_path / "project"))
    asyncio.run(Supervisor(world.session)._code.prepare())
    assert world.session.code is None
