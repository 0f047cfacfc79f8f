"""The scripts run as root, and whatever stands in their environment may be a user's choice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust.nodecheck import choices, door

HOME = Path(__file__).parents[2]
SCRIPTS = [HOME / "prolog/srobust-prolog", HOME / "epilog/srobust-epilog", HOME / "prolog/srobust-healthcheck"]
XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n"
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="what root does not believe is only tried as root")


class Trap:
    """A broken node, and programs that leave a mark when anybody runs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = folder / "mark"
        self.evil = folder / "evil"
        self.evil.mkdir()
        self.kmsg = folder / "kmsg"
        self.kmsg.write_text(f"Linux version 6.1.0\n{XID_79}")
        self.config = folder / "robust.yaml"
        self.config.write_text(
            f"mode: observe\nnodecheck: {{kmsg: {self.kmsg}, cache_dir: {folder}/cache/%n, deadline_s: 30, "
            "disable: [ethernet, filesystem, shm]}\n"
        )
        self.settings = folder / "env"
        self.tell()
        for name in ("python", "python3", "timeout", "logger", "scontrol", "srun", "echo", "cd"):
            self.trap(name)

    def tell(self, **more: str) -> None:
        """Write the file of settings."""
        told = {"SROBUST_PYTHON": sys.executable, "SROBUST_CODE": str(HOME), "SROBUST_CONFIG": str(self.config)} | more
        self.settings.write_text("".join(f"{key}={value}\n" for key, value in told.items()))

    def trap(self, name: str) -> Path:
        """A program that marks that it was run."""
        path = self.evil / name
        path.write_text(f"#!/bin/sh\ntouch {self.mark}\nexit 20\n")
        path.chmod(0o755)
        return path

    def run(self, script: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a script where a user chose this environment."""
        values = {"SLURM_JOB_ID": "42", "SLURMD_NODENAME": "n1"} | env
        argv = [str(script), str(self.settings)]
        return subprocess.run(argv, env=values, cwd="/", capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    """A node with an XID 79, in observe mode."""
    return Trap(tmp_path)


def module(trap: Trap, name: str) -> str:
    """A folder with a Python module that marks that it was imported."""
    (trap.evil / f"{name}.py").write_text(f"open({str(trap.mark)!r}, 'w')\n")
    return str(trap.evil)


HOSTILE: list[Callable[[Trap], dict[str, str]]] = [
    lambda trap: {"PATH": f"{trap.evil}:/usr/bin:/bin"},
    lambda trap: {"SROBUST_PYTHON": str(trap.evil / "python")},
    lambda trap: {"SROBUST_CODE": module(trap, "slurm_robust")},
    lambda trap: {"SROBUST_CONFIG": "/nonexistent"},
    lambda trap: {"SROBUST_TIMEOUT_S": f"0; touch {trap.mark}"},
    lambda trap: {"PYTHONPATH": module(trap, "stat"), "PYTHONHOME": str(trap.evil)},
    lambda trap: {"PYTHONPATH": module(trap, "sitecustomize"), "PYTHONINSPECT": "1", "PYTHONUSERBASE": str(trap.evil)},
    lambda trap: {"PYTHONSTARTUP": str(trap.evil / "python"), "PYTHONBREAKPOINT": "os.system"},
    lambda trap: {"BASH_ENV": str(trap.trap("rc")), "ENV": str(trap.evil / "rc")},
    lambda trap: {"BASH_FUNC_echo%%": f"() {{ touch {trap.mark}; }}", "SHELLOPTS": "xtrace", "PS4": "$(touch m)"},
    lambda trap: {"IFS": "/ln", "CDPATH": str(trap.evil), "TMPDIR": str(trap.evil), "HOME": str(trap.evil)},
    lambda trap: {"LD_LIBRARY_PATH": str(trap.evil), "LD_AUDIT": "", "GCONV_PATH": str(trap.evil)},
    lambda trap: {"SLURM_JOB_ID": f"$(touch {trap.mark})`touch {trap.mark}`", "SLURM_JOB_GPUS": "a" * 100_000},
    lambda trap: {"SLURM_JOB_ID": "-1", "SPANK_ROBUST_MODE": "act", "SLURM_JOB_NODELIST": f";touch {trap.mark}"},
    lambda trap: {"SLURM_JOB_ID": "1\nsrobust-prolog: n1: fit", "SLURM_CONF": str(trap.evil / "scontrol")},
    lambda trap: {"stage": "x", "settings": str(trap.evil), "python": str(trap.evil / "python"), "code": "20"},
    lambda trap: {"SLURM_EXPORT_ENV": "ALL", "LC_ALL": "xx", "LANG": "../../evil", "TZ": f":{trap.evil}/python"},
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
@pytest.mark.parametrize("env", HOSTILE, ids=range(len(HOSTILE)))
def test_no_variable_leads_anywhere_else(trap: Trap, script: Path, env: Callable[[Trap], dict[str, str]]) -> None:
    """Nothing of the user's is run, the check is the same, and the job starts."""
    done = trap.run(script, **env(trap))
    assert done.returncode == 0, done.stderr
    assert "observe: would drain n1: XID 79" in done.stderr
    assert not trap.mark.exists()


@pytest.mark.parametrize("name", ["../n1", "n1;reboot", "", "n1/../../../tmp/x", "a" * 5000])
def test_a_node_name_of_no_such_shape_is_not_used(trap: Trap, name: str) -> None:
    """The host's own name stands in its place, and no path is made of it."""
    done = trap.run(SCRIPTS[0], SLURMD_NODENAME=name)
    assert done.returncode == 0
    assert [path.name for path in (trap.folder / "cache").iterdir()] == [os.uname().nodename.split(".")[0]]


@root_only
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_settings_of_somebody_else_are_not_read(trap: Trap, script: Path) -> None:
    """They name the program that root runs."""
    trap.tell(SROBUST_PYTHON=str(trap.evil / "python"))
    os.chown(trap.settings, 1000, 1000)
    done = trap.run(script)
    assert done.returncode == 0
    assert "belongs to somebody else" in done.stderr
    assert not trap.mark.exists()


@root_only
@pytest.mark.parametrize(
    "spoil",
    [
        lambda trap: trap.config.chmod(0o666),
        lambda trap: os.chown(trap.config, 1000, -1),
        lambda trap: (os.chown(trap.config, -1, 1000), trap.config.chmod(0o664)),
        lambda trap: trap.folder.chmod(0o777),
        lambda trap: os.chown(trap.folder, 1000, -1),
    ],
)
def test_a_configuration_that_others_may_write_or_replace_is_refused(trap: Trap, spoil: Callable[[Trap], None]) -> None:
    """Also where only a folder on the way is theirs; the job starts, and the log says what to type."""
    spoil(trap)
    done = trap.run(SCRIPTS[0])
    trap.folder.chmod(0o700)
    assert done.returncode == 0
    assert "others may write it" in done.stderr
    assert "chown root:root" in done.stderr


@root_only
def test_a_path_through_a_user_s_link_is_judged_by_where_it_leads(trap: Trap) -> None:
    """`..` and links: it is the real file's folders that must be root's."""
    theirs = trap.folder / "theirs"
    theirs.mkdir()
    (theirs / "robust.yaml").write_text("mode: act\n")
    os.chown(theirs, 1000, 1000)
    link = trap.folder / "link.yaml"
    link.symlink_to(theirs / "robust.yaml")
    for path in (link, trap.evil / "../theirs/robust.yaml"):
        with pytest.raises(choices.Wrong, match="others may write"):
            choices.distrust(str(path))


@root_only
@pytest.mark.parametrize("spoil", ["foreign", "writable", "link"])
def test_a_state_folder_that_is_not_root_s_is_neither_read_nor_written(trap: Trap, spoil: str) -> None:
    """A folder of somebody else's, one that anybody may write, a link: the look is taken whole and leaves nothing."""
    cache = trap.folder / "cache/n1"
    trap.kmsg.write_text("Linux version 6.1.0\n")
    trap.run(SCRIPTS[2])
    before = sorted(path.name for path in cache.iterdir())
    assert "fresh" in before
    (cache / "fresh").write_text((cache / "fresh").read_text().replace("checks\t", "checks\tforged"))
    if spoil == "link":
        cache.rename(trap.folder / "elsewhere")
        cache.symlink_to(trap.folder / "elsewhere")
    elif spoil == "foreign":
        os.chown(cache, 1000, 1000)
    else:
        cache.chmod(0o777)
    stamps = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    trap.tell(SROBUST_VERBOSE="1")
    done = trap.run(SCRIPTS[0])
    assert (done.returncode, "forged" in done.stderr) == (0, False)
    assert "no fresh verdict" in done.stderr
    assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == stamps


@root_only
def test_a_link_in_the_state_folder_is_not_followed(trap: Trap) -> None:
    """What a link there leads to is neither read nor overwritten."""
    cache = trap.folder / "cache/n1"
    trap.kmsg.write_text("Linux version 6.1.0\n")
    trap.run(SCRIPTS[2])
    victim = trap.folder / "victim"
    victim.write_text("{}")
    for name in ("fresh", "xid.json", "choices.json"):
        (cache / name).unlink()
        (cache / name).symlink_to(victim)
    assert trap.run(SCRIPTS[2]).returncode == 0
    assert victim.read_text() == "{}"
    assert not (cache / "fresh").is_symlink()


@root_only
def test_slurm_conf_of_a_person_is_forgotten(tmp_path: Path) -> None:
    """Slurm's commands load plugins that it names: one that a person may write is none for root."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("")
    for owner, mode, kept in ((0, 0o644, True), (64030, 0o644, False), (106, 0o644, True), (0, 0o666, False)):
        os.chown(conf, owner, 0)
        conf.chmod(mode)
        env = {"SLURM_CONF": str(conf)}
        door.distrust_slurm_conf(env)
        assert ("SLURM_CONF" in env) is kept, (owner, mode)
    for path in ("slurm.conf", "/nonexistent", "a\0b"):
        env = {"SLURM_CONF": path}
        door.distrust_slurm_conf(env)
        assert env == {}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\0\0",
        "SROBUST_PYTHON",
        "=\n==\n",
        "SROBUST_PYTHON=$(touch m)\n",
        'SROBUST_PYTHON="/nonexistent"',
        "é\n" * 9,
    ],
)
def test_no_text_in_the_file_of_settings_holds_a_job(trap: Trap, script: Path, text: str) -> None:
    """Whatever it says: exit 0."""
    trap.settings.write_text(text)
    assert trap.run(script).returncode == 0
