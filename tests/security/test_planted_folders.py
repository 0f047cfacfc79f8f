"""Attacks on the folder that a supervisor keeps beside its job's output, where others may create entries too."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from other_user import (
    ATTACKER,
    GROUP,
    VICTIM,
    access_list,
    acting_as,
    as_user,
    home_of,
    needs_root,
    shared_folder,
)

from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.lineage import lineage_store
from slurm_robust.supervise.lineage.lineage import LineageMemory, Tally

pytestmark = needs_root
BOTH = pytest.mark.parametrize("mode", [0o1777, 0o2770], ids=["as /tmp", "a project's"])


class Scene:
    """A shared folder, the victim's home with a start file, and the name that everybody can guess."""

    def __init__(self, tmp_path: Path, mode: int) -> None:
        self.shared = shared_folder(tmp_path / "shared", mode)
        self.home = home_of(VICTIM, tmp_path / "home")
        self.bashrc = self.home / ".bashrc"
        self.bashrc.write_text("# mine\n")
        os.chown(self.bashrc, VICTIM, VICTIM)
        self.folder = self.shared / "slurm-robust-7"

    def supervise(self) -> tuple[str, LineageMemory]:
        """The victim's supervisor begins: where it writes, and what it remembers."""

        def begin() -> tuple[str, LineageMemory]:
            folder = IncidentFolder(self.folder, quiet=True)
            known = lineage_store.load(folder)
            folder.log_event("note", "$(touch /tmp/owned)")
            folder.write("7-r0-1/incident.json", "{}")
            folder.subfolder("fr")
            return str(folder.path), known

        return as_user(VICTIM, begin, self.home)

    def untouched(self) -> bool:
        """Whether the victim's start file is as it was."""
        return self.bashrc.read_text() == "# mine\n"


@BOTH
def test_a_folder_made_first_is_not_used(tmp_path: Path, mode: int) -> None:
    """Its story is a link to the victim's start file, its lineage says exit 93: nothing of it is believed."""
    scene = Scene(tmp_path, mode)

    def attack() -> None:
        scene.folder.mkdir(mode=0o777)
        scene.folder.chmod(0o777)
        (scene.folder / "story.jsonl").symlink_to(scene.bashrc)
        (scene.folder / "7-r0-1").symlink_to(scene.home)
        told = b'{"last":"run 1","runs":{},"tally":{"since_s":9e9,"count":99}}'
        (scene.folder / "lineage.json").write_bytes(told)

    as_user(ATTACKER, attack)
    where, known = scene.supervise()
    assert where == f"{scene.folder}.1"
    assert known == LineageMemory()
    assert scene.untouched()
    assert not (scene.home / "incident.json").exists()
    assert "$(touch" in Path(f"{where}/story.jsonl").read_text()


@BOTH
@pytest.mark.parametrize("kind", ["link", "file", "pipe", "closed"])
def test_whatever_has_the_name_is_left_alone(tmp_path: Path, mode: int, kind: str) -> None:
    """A link to the victim's own home would be a folder of the victim's own; a pipe would hold the supervisor up."""
    scene = Scene(tmp_path, mode)

    def attack() -> None:
        if kind == "link":
            scene.folder.symlink_to(scene.home)
        elif kind == "file":
            scene.folder.touch()
        elif kind == "pipe":
            os.mkfifo(scene.folder)
        else:
            scene.folder.mkdir(mode=0o000)

    as_user(ATTACKER, attack)
    assert scene.supervise()[0] == f"{scene.folder}.1"
    assert sorted(p.name for p in scene.home.iterdir()) == [".bashrc"]


def test_all_names_taken_leads_home_and_back(tmp_path: Path) -> None:
    """The folder is then below the victim's home, and the job's next attempt finds it there."""
    scene = Scene(tmp_path, 0o1777)
    as_user(ATTACKER, lambda: [Path(f"{scene.folder}{n}").mkdir() for n in ("", ".1", ".2", ".3")])
    where, _ = scene.supervise()
    assert where.startswith(f"{scene.home}/.local/state/slurm_robust/")
    assert scene.supervise()[0] == where
    assert len(Path(f"{where}/story.jsonl").read_text().splitlines()) == 2


def test_the_next_attempt_finds_its_own_folder(tmp_path: Path) -> None:
    """Also where the name before it has become free in the meantime."""
    scene = Scene(tmp_path, 0o1777)
    as_user(ATTACKER, scene.folder.mkdir)
    first, _ = scene.supervise()
    scene.folder.rmdir()
    assert scene.supervise()[0] == first


def test_a_common_umask_opens_the_folder_to_nobody(tmp_path: Path) -> None:
    """With umask 002 in a project's folder ours is 0755; one that an older version left at 0775 becomes so."""
    scene = Scene(tmp_path, 0o2770)
    as_user(VICTIM, lambda: scene.folder.mkdir(mode=0o775))
    assert stat.S_IMODE(scene.folder.stat().st_mode) & 0o777 == 0o775
    assert scene.supervise()[0] == str(scene.folder)
    assert stat.S_IMODE(scene.folder.stat().st_mode) & 0o777 == 0o755
    assert stat.S_IMODE((scene.folder / "story.jsonl").stat().st_mode) == 0o644
    assert stat.S_IMODE((scene.folder / "fr").stat().st_mode) & 0o777 == 0o700


@pytest.mark.parametrize("group", [VICTIM, GROUP], ids=["the user's own", "a project's"])
def test_what_an_older_version_left_with_a_common_umask_is_read(tmp_path: Path, group: int) -> None:
    """Its lineage is 0664: after an upgrade it still counts, unless a group of several could have written it."""
    scene = Scene(tmp_path, 0o1777)

    def left() -> None:
        scene.folder.mkdir(mode=0o775)
        (scene.folder / "lineage.json").write_text('{"tally":{"since_s":9,"count":3}}')

    as_user(VICTIM, left)
    for path in (scene.folder, scene.folder / "lineage.json"):
        os.chown(path, VICTIM, group)
        path.chmod(0o775 if path.is_dir() else 0o664)
    assert scene.supervise()[1].tally == (Tally(9.0, 3) if group == VICTIM else Tally())


def test_an_access_list_opens_what_the_own_group_does_not(tmp_path: Path) -> None:
    """An older version's folder is of the victim's own group; its list lets the attacker in: it is closed."""
    scene = Scene(tmp_path, 0o2770)
    lineage = scene.folder / "lineage.json"
    scene.folder.mkdir()
    lineage.write_text('{"tally":{"since_s":9,"count":3}}')
    for path in (scene.folder, lineage):
        os.chown(path, VICTIM, VICTIM)
        access_list(path, ATTACKER)
    as_user(ATTACKER, lambda: lineage.write_text('{"tally":{"since_s":9e9,"count":99}}'))
    where, known = scene.supervise()
    assert (where, known) == (str(scene.folder), LineageMemory())
    with pytest.raises(AssertionError, match="PermissionError"):
        as_user(ATTACKER, lambda: (scene.folder / "more").write_text(""))


@pytest.mark.parametrize("plant", ["link", "hard link", "folder", "open file"])
def test_what_was_planted_while_it_was_open_is_not_used(tmp_path: Path, plant: str) -> None:
    """A folder of an older version was open to the group: links, and files that others may write, are in it."""
    scene = Scene(tmp_path, 0o2770)
    as_user(VICTIM, lambda: scene.folder.mkdir(mode=0o775))
    story = scene.folder / "story.jsonl"
    if plant == "link":
        as_user(ATTACKER, lambda: story.symlink_to(scene.bashrc))
    elif plant == "hard link":
        os.link(scene.bashrc, story)  # some kernels let the attacker do it
    elif plant == "folder":
        as_user(ATTACKER, lambda: (scene.folder / "7-r0-1").symlink_to(scene.home))
    else:
        as_user(ATTACKER, lambda: (scene.folder / "lineage.json").write_text('{"tally":{"since_s":9e9,"count":99}}'))
    assert scene.supervise()[1].tally == Tally()
    assert scene.untouched()
    assert not (scene.home / "incident.json").exists()


def test_who_exchanges_the_folder_gets_nothing_of_ours(tmp_path: Path) -> None:
    """In a project's folder anybody of the group may rename ours while the job runs: we go on in our own."""
    scene = Scene(tmp_path, 0o2770)

    def attack() -> None:
        scene.folder.rename(scene.shared / "away")
        scene.folder.mkdir()
        (scene.folder / "story.jsonl").symlink_to(scene.bashrc)

    with acting_as(VICTIM):
        folder = IncidentFolder(scene.folder, quiet=True)
        folder.log_event("note", "first")
    as_user(ATTACKER, attack)
    with acting_as(VICTIM):
        folder.log_event("note", "second")
        folder.write("lineage.json", "{}")
    assert scene.untouched()
    assert (scene.shared / "away" / "story.jsonl").read_text().count("note") == 2
    assert sorted(p.name for p in scene.folder.iterdir()) == ["story.jsonl"]
