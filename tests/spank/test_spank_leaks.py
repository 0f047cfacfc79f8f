"""A launch under valgrind: srun, the slurmstepds of batch script and step; nothing of the plugin's leaks or strays."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import slurm_required, wait_until
from spank_build import line

from slurm_robust.devcluster import machine
from slurm_robust.devcluster.cluster import DevCluster, Spec

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]
SOURCES = "values|site|options|attach|hold|exits|task_env|dispatch|context_[a-z]+"
OURS = re.compile(rf"\((?:{SOURCES})\.c:\d+\)|spank_robust\.so")
SLURMS = re.compile(r"libslurm|/srun\)|/slurmstepd\)")
LOADED = re.compile(r"Reading syms from \S*spank_robust\.so")


@pytest.fixture
def logs(tmp_path: Path, plugin: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[DevCluster, Path, list[str]]]:
    """A node whose slurmstepds run under valgrind; where it writes, and how to run something else so."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        message = "no valgrind here: apt-get install valgrind (scripts/setup --dev does)"
        if slurm_required():
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    # What was unloaded before the end keeps its names; a child is another program.
    words = [
        valgrind,
        "-v",
        "--leak-check=full",
        "--keep-debuginfo=yes",
        "--trace-children=no",
        "--child-silent-after-fork=yes",
    ]
    folder, stepd = tmp_path / "bin", Path(machine.command("slurmd")).with_name("slurmstepd")
    folder.mkdir()
    wrappers = {
        "slurmstepd": f'exec {" ".join(words)} --log-file={tmp_path}/stepd.%p {stepd} "$@"',
        "slurmd": f'exec {machine.command("slurmd")} -d {folder}/slurmstepd "$@"',
    }
    for name, text in wrappers.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    conf = tmp_path / "plugstack.conf"
    conf.write_text(line(plugin) + "\n")
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    cluster = DevCluster.up(Spec(nodes=1, prolog=False, slurm_conf_extra=f"PlugStackConfig={conf}"))
    yield cluster, tmp_path, words
    cluster.down()


def records(text: str) -> list[str]:
    """What valgrind tells, one by one."""
    plain = re.sub(r"^==\d+== ?", "", text, flags=re.MULTILINE)
    return [
        record for record in plain.split("\n\n") if OURS.search(record) and not LOADED.search(record) and ours(record)
    ]


def ours(record: str) -> bool:
    """A stray access on our way, or memory that we took ourselves: what Slurm takes in a call of ours is Slurm's."""
    frames = record.splitlines()[1:]
    if "loss record" not in record:
        return True
    first = next((n for n, frame in enumerate(frames) if OURS.search(frame)), None)
    return first is not None and not any(SLURMS.search(frame) for frame in frames[:first])


LEAK = """\
==1== 40 bytes in 1 blocks are definitely lost in loss record 1 of 2
==1==    at 0x484682F: malloc (in /usr/libexec/valgrind/vgpreload_memcheck-amd64-linux.so)
==1==    by 0x51D07F8: options_export_to_prologs (options.c:164)
==1==    by 0x51CF7EF: srun_post_opt (context_srun.c:33)
==1==
"""


def test_a_leak_of_ours_would_be_seen() -> None:
    """As valgrind writes one; and one that Slurm keeps for itself is not ours."""
    assert len(records(LEAK)) == 1
    theirs = LEAK.replace("malloc (in", "slurm_xmalloc (in /usr/lib/slurm-wlm/libslurmfull.so)\n==1==    by (in")
    assert records(theirs) == []
    assert len(records("==1== Invalid read of size 1\n==1==    at 0x1: shown (values.c:9)\n")) == 1


@pytest.mark.begin_early
def test_a_launch_leaves_nothing_behind(logs: tuple[DevCluster, Path, list[str]]) -> None:
    """`sbatch --robust` with an srun in it: each process has loaded the plugin, and none has a record that names it."""
    cluster, folder, words = logs
    srun = f"{' '.join(words)} --log-file={folder}/srun.%p {machine.command('srun')}"
    # One that acts prepares to wait for its watch; one that fails tells its watch so.
    script = f"{srun} --robust-layout=tp=2 true && {srun} --robust=observe true && {srun} false; exit 0"
    job = ["sbatch", "--wait", "-N1", "-n1", f"--output={folder}/out", "--robust=on", "--robust-spares=1"]
    subprocess.run([*job, "--wrap", script], env=dict(cluster.env), check=True, timeout=120)
    wait_until(lambda: not cluster.processes(), 30, "the slurmstepds' end")
    files = [*folder.glob("srun.*"), *folder.glob("stepd.*")]
    texts = {file.name: text for file in files if LOADED.search(text := file.read_text())}
    assert len([name for name in texts if name.startswith("srun")]) >= 3
    assert len([name for name in texts if name.startswith("stepd")]) >= 2
    for name, text in texts.items():
        assert records(text) == [], name
