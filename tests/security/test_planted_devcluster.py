"""An attack on the devcluster's usual folder in /tmp, whose name is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from other_user import ATTACKER, VICTIM, as_user, home_of, needs_root, shared_folder

from slurm_robust.devcluster import files
from slurm_robust.devcluster.spec import DevClusterError, Spec


@needs_root
@pytest.mark.parametrize("owner", [ATTACKER, VICTIM], ids=["attacker's link", "own link"])
def test_a_link_opens_no_private_folder_to_others(tmp_path: Path, owner: int) -> None:
    """It leads to a private folder of the victim's, which is no empty one: it keeps its mode."""
    shared, home = shared_folder(tmp_path / "shared", 0o1777), home_of(VICTIM, tmp_path / "home")
    (home / "key").write_text("secret")
    name = shared / "srobust-devcluster"

    def up() -> str:
        with pytest.raises(DevClusterError) as refused:
            files.make_directory(Spec(directory=name))
        return str(refused.value)

    as_user(owner, lambda: name.symlink_to(home))
    told = as_user(VICTIM, up)
    assert owner == VICTIM or "a link of another user" in told
    assert home.stat().st_mode & 0o777 == 0o700
