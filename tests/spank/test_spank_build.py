"""The plugin as a file: it builds without a warning, exports what Slurm needs and no more, and its parsing holds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from spank_build import SPANK, make, need_compiler

from slurm_robust.doctor.plugin import built_in
from slurm_robust.supervise.launch import options, srun_command

FIELDS = {"spares": 1, "layout": 2, "checkpoint-dir": 3, "hang-timeout": 4}


def test_it_exports_what_slurm_looks_for_and_nothing_else(plugin: Path) -> None:
    """The version script holds back every other name, so that none can clash with another plugin's."""
    shown = subprocess.run(["nm", "-D", "--defined-only", plugin], capture_output=True, text=True, check=True).stdout
    assert {row.split()[-1] for row in shown.splitlines()} == {
        "plugin_name",
        "plugin_type",
        "plugin_version",
        "spank_plugin_version",
        "slurm_spank_init",
        "slurm_spank_init_post_opt",
        "slurm_spank_local_user_init",
        "slurm_spank_task_init",
        "slurm_spank_task_exit",
        "slurm_spank_exit",
    }


def test_it_links_no_libslurm_and_is_hardened(plugin: Path) -> None:
    """Another libslurm beside the one that loads it would be a crash; relocations are read-only, the stack too."""
    shown = subprocess.run(["readelf", "-dlW", plugin], capture_output=True, text=True, check=True).stdout
    assert [row.split("[")[1].rstrip("]") for row in shown.splitlines() if "(NEEDED)" in row] == ["libc.so.6"]
    assert "BIND_NOW" in shown
    assert "GNU_RELRO" in shown
    stack = next(row for row in shown.splitlines() if "GNU_STACK" in row)
    assert "RWE" not in stack


def test_its_own_tests_hold_under_the_sanitizers(tmp_path: Path) -> None:
    """`make check`: hostile values, noise, all contexts; nothing is touched out of bounds, nothing leaks."""
    need_compiler()
    done = make(tmp_path, "check")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted({"/usr/include", *os.environ.get("SROBUST_SLURM_INCLUDES", "").split(":")}))
def test_it_builds_without_a_warning(name: str, tmp_path: Path) -> None:
    """Against this machine's Slurm, and each folder with other headers that $SROBUST_SLURM_INCLUDES names."""
    need_compiler()
    done = make(tmp_path, *([f"SLURM_INCLUDE={name}"] if name not in ("", "/usr/include") else []))
    assert (done.returncode, done.stderr) == (0, "")


def test_installing_puts_every_file_in_its_place_and_uninstalling_takes_it_away(tmp_path: Path) -> None:
    """`make install prefix=/usr`, into a folder as packages do it; the line says optional."""
    need_compiler()
    root = tmp_path / "root"
    words = ("prefix=/usr", f"DESTDIR={root}")
    done = make(tmp_path / "build", "install", *words)
    assert done.returncode == 0, done.stderr
    conf = root / "etc/slurm/plugstack.conf.d/robust.conf"
    rows = [row for row in conf.read_text().splitlines() if not row.startswith("#")]
    assert rows == ["optional /usr/lib/slurm/spank_robust.so"]
    assert (root / "usr/lib/slurm/spank_robust.so").exists()
    assert (root / "usr/share/slurm_robust/spank/sitecustomize.py").exists()
    assert make(tmp_path / "build", "uninstall", *words).returncode == 0
    assert [p for p in root.rglob("*") if p.is_file()] == []


def test_installing_elsewhere_than_it_was_built_for_builds_it_again(tmp_path: Path) -> None:
    """`make`, then `make install prefix=/usr`: what is compiled in is what is installed, srobust too."""
    need_compiler()
    assert make(tmp_path / "build").returncode == 0
    root = tmp_path / "root"
    words = ("install", "prefix=/usr", "COMMAND=/opt/other/srobust", f"DESTDIR={root}")
    done = make(tmp_path / "build", *words)
    assert (done.returncode, done.stderr) == (0, "")
    installed = root / "usr/lib/slurm/spank_robust.so"
    found = built_in(installed.read_bytes())
    assert found == {"command": "/opt/other/srobust", "python": "/usr/share/slurm_robust/spank"}
    assert (root / found["python"].lstrip("/") / "sitecustomize.py").exists()
    built_at_ns = (tmp_path / "build/site.o").stat().st_mtime_ns
    assert make(tmp_path / "build", *words).returncode == 0
    assert (tmp_path / "build/site.o").stat().st_mtime_ns == built_at_ns  # nothing changed: nothing is built


PROBE = """
#include <stdio.h>
#include <stdlib.h>
#include "src/values.h"
int main(int argc, char **argv)
{
	for (int n = 1; n + 1 < argc; n += 2) {
		struct request request = {0};
		puts(value_take(&request, (enum field)atoi(argv[n]), argv[n + 1]) == NULL ? "yes" : "no");
	}
	return 0;
}
"""


def test_the_plugin_and_srobust_run_take_the_same_values(tmp_path: Path) -> None:
    """What the plugin lets through, `srobust` takes, and the other way round: a job is not refused halfway."""
    need_compiler()
    cases = [
        *[("hang-timeout", v) for v in ("1", "0", "0.5", "90.5", "604800", "604801", "x", "1_0", " 1", "5s")],
        *[("layout", v) for v in ("tp=2", "tp=2,pp=4", "tp=0", "tp", "tp=2,", "xx=1", "fsdp=8", "tp=1234567")],
        *[
            ("layout", v)
            for v in ("tp=2,tp=2", "ep=2,etp=1,cp=2", "tp=02", "tp=2,order=tp-pp-dp", "order=tp", "tp=2,order=etp")
        ],
    ]
    source, probe = tmp_path / "probe.c", tmp_path / "probe"
    source.write_text(PROBE)
    subprocess.run(["cc", f"-I{SPANK}", "-o", probe, source, SPANK / "src/values.c"], check=True)
    words = [word for name, value in cases for word in (str(FIELDS[name]), value)]
    done = subprocess.run([probe, *words], capture_output=True, text=True, check=True)
    for (name, value), said in zip(cases, done.stdout.split(), strict=True):
        try:
            options.read({name: value}, {})
            taken = True
        except srun_command.UsageError:
            taken = False
        if said == "yes":
            assert taken, f"--robust-{name}={value}: the plugin takes it, srobust does not"
        elif value not in ("1_0", " 1"):  # Python's own ways to write a number
            assert not taken, f"--robust-{name}={value}: srobust takes it, the plugin does not"
