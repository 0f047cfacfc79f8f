"""Attacks on the versions of a job's code: they are executed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from other_user import ATTACKER, VICTIM, access_list, as_user, home_of, needs_root, shared_folder

from slurm_robust.supervise.versions.snapshot import Limits, SnapshotError
from slurm_robust.supervise.versions.version_folder import Origin, VersionFolder
from slurm_robust.wire import own_folder

pytestmark = needs_root


def test_a_folder_that_was_put_in_ours_place_gets_no_code(tmp_path: Path) -> None:
    """Neither a snapshot nor a report is written into a folder of the attacker's, and no link in it is followed."""
    shared, home = shared_folder(tmp_path / "shared", 0o2770), home_of(VICTIM, tmp_path / "home")
    (home / "train.py").write_text("")
    folder = shared / "slurm-robust-7"

    def attack() -> None:
        (folder / "code").mkdir(parents=True)
        folder.chmod(0o777)
        (folder / "code").chmod(0o777)

    def take() -> str:
        try:
            VersionFolder(folder).take(Origin(home, "victim"), Limits(1 << 20, 10, 10.0))
        except SnapshotError as error:
            return str(error)
        return ""

    def write() -> None:
        with pytest.raises(own_folder.NotOursError):
            VersionFolder(folder)._write("state.json", b"{}")

    as_user(ATTACKER, attack)
    assert "is not a folder of yours: it belongs to uid" in as_user(VICTIM, take)
    as_user(VICTIM, write)
    assert not list((folder / "code").iterdir())


@pytest.mark.parametrize(("mode", "found"), [(0o1777, False), (0o2770, True), (0o2750, False)])
def test_who_may_exchange_a_folder_is_seen(tmp_path: Path, mode: int, found: bool) -> None:
    """In /tmp nobody may rename another's folder; in a project's folder the group may."""
    shared = shared_folder(tmp_path / "shared", mode)
    for above in (tmp_path, tmp_path.parent):
        os.chown(above, 0, 0)
    open_at = as_user(VICTIM, lambda: own_folder.replaceable_at(str(shared / "slurm-robust-7")))
    assert open_at == (str(shared) if found else "")


@pytest.mark.parametrize(
    ("mode", "whose", "found"),
    [(0o2770, VICTIM, "project"), (0o1777, VICTIM, ""), (0o1777, ATTACKER, "project/latest"), (0o755, ATTACKER, "")],
)
def test_a_link_on_the_way_is_looked_at(tmp_path: Path, mode: int, whose: int, found: str) -> None:
    """`project/latest -> ~/runs`: whoever exchanges the link exchanges the code, though nobody else may write there."""
    shared, home = shared_folder(tmp_path / "project", mode), home_of(VICTIM, tmp_path / "home")
    for above in (tmp_path, tmp_path.parent):
        os.chown(above, 0, 0)
    runs = home / "runs"
    runs.mkdir(mode=0o700)
    os.chown(runs, VICTIM, VICTIM)
    link = shared / "latest"
    link.symlink_to(f"../project/./../{home.name}/runs")
    os.chown(link, whose, whose, follow_symlinks=False)
    open_at = as_user(VICTIM, lambda: own_folder.replaceable_at(str(link / "slurm-robust-7")))
    assert open_at == (str(tmp_path / found) if found else "")
    assert as_user(VICTIM, lambda: own_folder.replaceable_at(str(runs / "slurm-robust-7"))) == ""


def test_links_in_a_circle_are_no_way(tmp_path: Path) -> None:
    """They are told as the kernel tells them, and a folder that is missing is, too."""
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OSError, match="Too many levels"):
        own_folder.replaceable_at(str(tmp_path / "one" / "code"))
    with pytest.raises(FileNotFoundError):
        own_folder.replaceable_at(str(tmp_path / "none" / "slurm-robust-7" / "code"))


@pytest.mark.parametrize("owner", [0, VICTIM])
def test_an_access_list_on_the_way_is_seen(tmp_path: Path, owner: int) -> None:
    """`setfacl -m u:ATTACKER:rwx project`: the group is nobody, root's or their own; the list names one."""
    project = tmp_path / "project"
    project.mkdir(mode=0o755)
    os.chown(project, owner, owner)
    for above in (tmp_path, tmp_path.parent):
        above.chmod(0o755)
        os.chown(above, 0, 0)
    access_list(project, ATTACKER)
    folder = project / "slurm-robust-7"
    folder.mkdir()
    os.chown(folder, VICTIM, VICTIM)
    assert as_user(VICTIM, lambda: own_folder.replaceable_at(str(folder / "code"))) == str(project)
    as_user(ATTACKER, lambda: folder.rename(project / "away"))
