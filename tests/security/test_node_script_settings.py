"""What root runs from prolog, epilog and health check: nobody but root chose it, whatever shell options a user sets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from other_user import access_list

from slurm_robust.nodecheck import state_folder

HOME = Path(__file__).parents[2]
SCRIPTS = [HOME / "prolog/srobust-prolog", HOME / "epilog/srobust-epilog", HOME / "prolog/srobust-healthcheck"]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="what root does not believe is only tried as root")
USER = 54321


class Site:
    """Settings that name a Python that leaves a mark, and says that the node is fit."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, folder / "mark"
        self.python = folder / "venv/bin/python"
        self.python.parent.mkdir(parents=True)
        self.python.write_text(f"#!/bin/sh\ntouch {self.mark}\n")
        self.python.chmod(0o755)
        self.settings = folder / "etc/env"
        self.settings.parent.mkdir()
        self.theirs = folder / "theirs"
        self.theirs.mkdir()
        os.chown(self.theirs, USER, USER)

    def run(self, script: Path, shell: str = "", **env: str) -> tuple[bool, int, str]:
        """(whether the Python ran, exit code, what was said)."""
        self.settings.exists() or self.settings.write_text(f"SROBUST_PYTHON={self.python}\n")
        self.mark.unlink(missing_ok=True)
        argv = [*(["sh"] if shell else []), str(script), str(self.settings)]
        done = subprocess.run(
            argv,
            executable=shell or None,
            env={"SLURM_JOB_ID": "42", **env},
            capture_output=True,
            text=True,
            check=False,
        )
        return self.mark.exists(), done.returncode, done.stderr


@pytest.fixture(params=["folders of root's alone", "a folder for all"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A site whose settings and Python are root's.

    Below folders of root's alone one look may suffice; below /tmp, which is everyone's, it never does.
    """
    if request.param == "a folder for all":
        yield Site(tmp_path)
        return
    with tempfile.TemporaryDirectory(dir="/var/lib") as folder:
        Path(folder).chmod(0o755)
        yield Site(Path(folder))


def links(path: Path, theirs: Path) -> None:
    """Put a link to a link of theirs to root's own file in the place of a file."""
    real = path.with_name("real")
    path.rename(real)
    (theirs / "link").symlink_to(real)
    path.symlink_to(theirs / "link")


def folders(path: Path, theirs: Path) -> None:
    """The same for the folder in which it lies."""
    links(path.parent, theirs)


SPOILS: list[Callable[[Path, Path], object]] = [
    links,
    folders,
    lambda path, theirs: access_list(path, USER),
    lambda path, theirs: access_list(path.parent, USER),
    lambda path, theirs: os.chown(path, USER, USER),
    lambda path, theirs: path.chmod(0o777),
    lambda path, theirs: os.chown(path.parent, USER, USER),
]
NAMES = ["links to links", "linked folders", "an access list", "one on the folder", "theirs", "everyone's", "in theirs"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_what_is_root_s_runs(site: Site, script: Path) -> None:
    """Also through links of root's, and where root's own group may write."""
    assert site.run(script) == (True, 0, "")
    site.python.parent.chmod(0o775)
    link = site.folder / "link"
    link.symlink_to("venv/bin/../bin")
    site.settings.write_text(f"SROBUST_PYTHON={link}/python\n")
    assert site.run(script) == (True, 0, "")


@pytest.mark.parametrize("spoil", SPOILS, ids=NAMES)
def test_a_python_that_others_may_replace_is_not_run(site: Site, spoil: Callable[[Path, Path], object]) -> None:
    """Root does not run it; the job starts, and the log names what to mend."""
    spoil(site.python, site.theirs)
    for script in SCRIPTS:
        ran, code, said = site.run(script)
        assert (ran, code) == (False, 0)
        assert "others own or may write" in said


@pytest.mark.parametrize("spoil", SPOILS, ids=NAMES)
def test_nor_are_settings_that_others_may_replace_read(site: Site, spoil: Callable[[Path, Path], object]) -> None:
    """They name the program that root runs; configuration and NVML library are judged alike."""
    site.settings.write_text(f"SROBUST_PYTHON={site.python}\n")
    spoil(site.settings, site.theirs)
    for script in SCRIPTS:
        ran, code, said = site.run(script)
        assert (ran, code) == (False, 0)
        assert "others own or may write" in said
    assert state_folder.foreign_place(str(site.settings), state_folder.is_ours)


def test_no_code_of_a_user_s_is_imported(site: Site) -> None:
    """`SROBUST_CODE` holds the program itself."""
    site.settings.write_text(f"SROBUST_PYTHON={sys.executable}\nSROBUST_CODE={site.theirs}\n")
    package = site.theirs / "slurm_robust/nodecheck/stages"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").write_text("")
    (package / "fast_path.py").write_text(f"open({str(site.mark)!r}, 'w')\n")
    ran, code, said = site.run(SCRIPTS[0])
    assert (ran, code) == (False, 0)
    assert "others own or may write" in said


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
@pytest.mark.parametrize("option", ["nounset", "errexit", "noglob", "nounset:errexit:xtrace"])
def test_no_shell_option_ends_the_script(site: Site, script: Path, option: str) -> None:
    """A shell that takes options from its environment does what it does without them."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    assert site.run(script, bash, SHELLOPTS=option)[:2] == (True, 0)
    site.settings.write_text("SROBUST_PYTHON=/nonexistent\n")
    assert site.run(script, bash, SHELLOPTS=option)[1] == 0


@pytest.mark.parametrize("spoil", [None, *SPOILS], ids=["nothing", *NAMES])
def test_one_look_suffices_where_all_is_root_s(site: Site, spoil: Callable[[Path, Path], object] | None) -> None:
    """It costs a process instead of one for each link, at each start of a job; it never overlooks what is theirs."""
    if spoil:
        spoil(site.python, site.theirs)
    looks = re.search(r"^plain\(\) \{.*?^\}\n", SCRIPTS[0].read_text(), re.DOTALL | re.MULTILINE)
    assert looks
    argv = ["sh", "-c", f'{looks[0]}plain "$@"', "sh", str(site.python), "/bin/sh", ""]
    suffices = subprocess.run(argv, check=False).returncode == 0
    assert suffices == (spoil is None and Path("/var/lib") in site.folder.parents)
