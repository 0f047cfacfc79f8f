"""The scripts run as root, and whatever stands in their environment may be a user's choice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust.nodecheck.engine import choices
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import slurm_conf
from slurm_robust.nodecheck.stages import stage_run

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
        self.config = folder / "site/robust.yaml"
        self.config.parent.mkdir()
        self.config.write_text(
            f"mode: observe\nnodecheck: {{kmsg: {self.kmsg}, cache_dir: {folder}/cache/%n, deadline_s: 30, "
            "disable: [ethernet, filesystem, shm]}\n"
        )
        self.settings = folder / "settings/env"
        self.settings.parent.mkdir()
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

    def run(self, script: Path, shell: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Run a script where a user chose this environment; `shell` is what goes by the name of sh."""
        values = {"SLURM_JOB_ID": "42", "SLURMD_NODENAME": "n1"} | env
        argv = [*(["sh"] if shell else []), str(script), str(self.settings)]
        return subprocess.run(
            argv, executable=shell or None, env=values, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )


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


@pytest.mark.skipif(not os.access("/bin/bash", os.X_OK), reason="no bash here, and it is not this machine's sh")
def test_nor_where_sh_is_bash(trap: Trap) -> None:
    """As on Red Hat's and its kin, where functions come in with the environment."""
    names = ["cd", "echo", "env", "find", "logger", "read", "readlink", "timeout", "umask", "say", "[", "test"]
    names += ["unset", "export", "exit", "set"]
    functions = {f"BASH_FUNC_{name}%%": f"() {{ touch {trap.mark}; }}" for name in names}
    rc = {"BASH_ENV": str(trap.trap("rc")), "ENV": str(trap.evil / "rc"), "SHELLOPTS": "xtrace", "IFS": "/ln"}
    done = trap.run(SCRIPTS[0], "/bin/bash", **functions | rc)
    assert done.returncode == 0, done.stderr
    assert "observe: would drain n1: XID 79" in done.stderr
    assert not trap.mark.exists()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_only_what_is_named_reaches_the_program(trap: Trap, script: Path) -> None:
    """The C library and Slurm's commands obey more variables than anybody lists."""
    python = trap.folder / "python"
    python.write_text(f"#!/bin/sh\nenv >{trap.folder}/env-there\n")
    python.chmod(0o755)
    trap.tell(SROBUST_PYTHON=str(python))
    hostile = ("GLIBC_TUNABLES", "LD_DEBUG_OUTPUT", "RES_OPTIONS", "SLURM_CONF_SERVER", "SLURM_JWT", "SPANK_X", "HOME")
    conf = {"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_JOB_GPUS": "0,1"}
    assert trap.run(script, **dict.fromkeys(hostile, "/tmp/x"), **conf).returncode == 0
    there = dict(line.split("=", 1) for line in (trap.folder / "env-there").read_text().splitlines())
    ours = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "SLURMD_NODENAME": "n1"} | conf
    of_a_job = {} if script == SCRIPTS[2] else {"SLURM_JOB_ID": "42"}
    if script == SCRIPTS[2]:
        del ours["SLURM_JOB_GPUS"]
    assert {key: value for key, value in there.items() if key not in ("PWD", "_", "SHLVL", "OLDPWD")} == ours | of_a_job


@pytest.mark.parametrize("job", ["1\nsrobust-prolog: n1: fit", "\033[2J", "$(id)", "1" * 5000 + "x"])
def test_a_job_id_of_no_such_shape_is_not_logged(trap: Trap, job: str) -> None:
    """What says that nothing was checked is one plain line."""
    trap.tell(SROBUST_PYTHON="/nonexistent")
    done = trap.run(SCRIPTS[0], SLURM_JOB_ID=job)
    assert done.stderr.startswith("srobust-prolog: job none: not checked: no Python at /nonexistent")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["../n1", "n1;reboot", "", "n1/../../../tmp/x", "a" * 5000])
def test_a_node_name_of_no_such_shape_is_not_used(trap: Trap, name: str) -> None:
    """The host's own name stands in its place, and no path is made of it."""
    done = trap.run(SCRIPTS[0], SLURMD_NODENAME=name)
    assert done.returncode == 0
    assert [path.name for path in (trap.folder / "cache").iterdir()] == [os.uname().nodename.split(".")[0]]


SPOILS: dict[str, Callable[[Trap], object]] = {
    "theirs": lambda trap: os.chown(trap.settings, 1000, 1000),
    "everyone's": lambda trap: trap.settings.chmod(0o666),
    "a group's": lambda trap: (os.chown(trap.settings, 0, 1000), trap.settings.chmod(0o664)),
    "in everyone's folder": lambda trap: trap.settings.parent.chmod(0o777),
    "in their folder": lambda trap: os.chown(trap.settings.parent, 1000, -1),
    "below everyone's folder": lambda trap: trap.folder.chmod(0o777),
    "below their folder": lambda trap: os.chown(trap.folder, 1000, -1),
    "below a group's folder": lambda trap: (os.chown(trap.folder, 0, 1000), trap.folder.chmod(0o770)),
    "by a link of theirs": lambda trap: by_link(trap, theirs=True),
    "by a link to theirs": lambda trap: by_link(trap, theirs=False),
}


def by_link(trap: Trap, *, theirs: bool) -> None:
    """Put a link in the place of the settings; the folder on one end of it is a user's."""
    user = trap.folder / "user"
    user.mkdir()
    real = trap.folder / "root-s" if theirs else user / "deep"
    real.mkdir()
    trap.settings.rename(real / "env")
    link = (user if theirs else trap.settings.parent) / "link"
    link.symlink_to(real / "env")
    os.chown(user, 1000, 1000)
    trap.settings = link


@root_only
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS.keys())
def test_settings_that_others_may_write_are_not_read(trap: Trap, script: Path, spoil: Callable[[Trap], object]) -> None:
    """They name the program that root runs; the log says what to type."""
    trap.tell(SROBUST_PYTHON=str(trap.evil / "python"))
    spoil(trap)
    done = trap.run(script)
    assert done.returncode == 0
    assert "chown root:root, chmod go-w" in done.stderr
    assert not trap.mark.exists()


@root_only
def test_settings_in_a_sticky_folder_are_read(trap: Trap) -> None:
    """In /tmp nobody can put something else in the place of root's file."""
    trap.settings.parent.chmod(0o1777)
    assert "chown" not in (done := trap.run(SCRIPTS[0])).stderr
    assert "observe: would drain n1" in done.stderr


@root_only
@pytest.mark.parametrize(
    "spoil",
    [
        lambda trap: trap.config.chmod(0o666),
        lambda trap: os.chown(trap.config, 1000, -1),
        lambda trap: (os.chown(trap.config, -1, 1000), trap.config.chmod(0o664)),
        lambda trap: trap.config.parent.chmod(0o777),
        lambda trap: os.chown(trap.config.parent, 1000, -1),
    ],
)
def test_a_configuration_that_others_may_write_or_replace_is_refused(trap: Trap, spoil: Callable[[Trap], None]) -> None:
    """Also where only a folder on the way is theirs; the job starts, and the log says what to type."""
    spoil(trap)
    done = trap.run(SCRIPTS[0])
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
    (trap.folder / "root.yaml").write_text("mode: act\n")
    (theirs / "to-root.yaml").symlink_to(trap.folder / "root.yaml")
    (trap.folder / "chain.yaml").symlink_to(theirs / "to-root.yaml")
    (trap.folder / "by-folder").symlink_to(theirs / "to-folder")
    (theirs / "to-folder").symlink_to(trap.folder)
    through = (trap.folder / "chain.yaml", trap.folder / "by-folder/root.yaml")
    choices.distrust(str(trap.folder / "root.yaml"))
    for path in (link, trap.evil / "../theirs/robust.yaml", theirs / "to-root.yaml", *through):
        with pytest.raises(choices.ConfigRejected, match="others may write"):
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
    assert "no cached verdict" in done.stderr
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
        stage_run.distrust_slurm_conf(env)
        assert ("SLURM_CONF" in env) is kept, (owner, mode)
    for path in ("slurm.conf", "/nonexistent", "a\0b", ""):
        env = {"SLURM_CONF": path}
        stage_run.distrust_slurm_conf(env)
        assert env == {}


@root_only
def test_slurm_conf_below_a_person_s_folder_is_forgotten(tmp_path: Path) -> None:
    """Who may write a folder on the way may replace the file; Slurm's own user may own one. A log line says why."""
    conf = tmp_path / "etc/slurm/slurm.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("")
    folder = conf.parents[1]
    cases = ((0, 0o755, True), (64030, 0o755, False), (106, 0o755, True), (0, 0o777, False), (0, 0o1777, True))
    for owner, mode, kept in cases:
        os.chown(folder, owner, 0)
        folder.chmod(mode)
        env, lines = {"SLURM_CONF": str(conf)}, list[str]()
        stage_run.distrust_slurm_conf(env, lines.append)
        assert ("SLURM_CONF" in env, bool(lines)) == (kept, not kept), (owner, mode)
        assert all(str(folder) in line for line in lines)
    folder.chmod(0o770)
    os.chown(folder, 0, 1000)
    stage_run.distrust_slurm_conf(env)
    assert env == {}


@root_only
def test_a_check_reads_no_slurm_conf_below_a_person_s_folder(tmp_path: Path) -> None:
    """It is a user who says where it lies; the usual places come next."""
    conf = tmp_path / "site/slurm.conf"
    conf.parent.mkdir()
    conf.write_text("SlurmctldHost=evil\n")
    env = {"SLURM_CONF": str(conf)}
    assert "evil" in slurm_conf.read(Context("n1"), "", env)
    for owner, mode in ((1000, 0o755), (0, 0o777)):
        os.chown(conf.parent, owner, 0)
        conf.parent.chmod(mode)
        assert "evil" not in slurm_conf.read(Context("n1"), "", env)


@root_only
def test_a_slurm_conf_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It often lies on a file server, and the node is looked at because something is wrong with it."""
    monkeypatch.setattr(stage_run, "CONF_TIMEOUT_S", 0.2)
    monkeypatch.setattr(stage_run, "_not_the_system_s", lambda path: time.sleep(30))
    env = {"SLURM_CONF": "/nfs/slurm.conf"}
    started_s = time.monotonic()
    stage_run.distrust_slurm_conf(env)
    assert env == {}
    assert time.monotonic() - started_s < 10


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
