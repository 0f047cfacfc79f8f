"""The sitecustomize that the plugin puts in front: who may be traced, and that nobody's own is lost.

The kernel of the machine that tests need have no Yama: a preloaded library plays one, and writes down who asked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from spank_build import SPANK, need_compiler

SHIM = Path(__file__).with_name("yama_shim.c")
FAMILY = """
import multiprocessing, os, subprocess, sys
print("parent", os.getpid(), flush=True)
child = multiprocessing.get_context("fork").Process(target=lambda: print("loader", os.getpid(), flush=True))
child.start()
child.join()
code = "import os; print('worker', os.getpid(), flush=True)"
subprocess.run([sys.executable, "-c", code], check=True)
spawn = [sys.executable, "-S", "-c", code.replace("worker", "without site")]
subprocess.run(spawn, check=True)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, built."""
    need_compiler()
    made = tmp_path_factory.mktemp("shim") / "yama.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", made, SHIM, "-ldl"], check=True)
    return made


def family(shim: Path, record: Path, scope: str | None) -> tuple[dict[str, int], list[tuple[int, int]]]:
    """Run a rank with a data loader and torchrun's kind of worker: their pids, and what was asked of the kernel."""
    env = {**os.environ, "LD_PRELOAD": str(shim), "SHIM_RECORD": str(record), "PYTHONPATH": f"{SPANK}/python"}
    if scope is not None:
        env["SHIM_SCOPE"] = scope
    done = subprocess.run([sys.executable, "-c", FAMILY], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    pids = {row.rpartition(" ")[0]: int(row.rpartition(" ")[2]) for row in done.stdout.splitlines()}
    rows = record.read_text().splitlines() if record.exists() else []
    return pids, [(int(row.split()[0]), int(row.split()[1])) for row in rows]


def test_a_rank_its_loaders_and_its_workers_may_be_traced(shim: Path, tmp_path: Path) -> None:
    """Scope 1: each process asks for itself, once, for any tracer; fork and exec alike. Without site it cannot."""
    pids, asked = family(shim, tmp_path / "record", "1")
    assert sorted(asked) == sorted((pids[who], -1) for who in ("parent", "loader", "worker"))


@pytest.mark.parametrize("scope", ["0", "2", "3", "", "many", None])
def test_elsewhere_nothing_is_asked(shim: Path, tmp_path: Path, scope: str | None) -> None:
    """Where it changes nothing, and where it is not known; and the program runs."""
    pids, asked = family(shim, tmp_path / "record", scope)
    assert len(pids) == 4
    assert asked == []


def test_it_loads_the_users_own(tmp_path: Path) -> None:
    """Ours stands first on PYTHONPATH; the user's runs all the same, and is what `import sitecustomize` gives."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.stdout.write('the user\\n')\nmine = 1\n")
    env = {**os.environ, "PYTHONPATH": f"{SPANK}/python:{tmp_path}"}
    python = shutil.which("python3")
    assert python
    code = "import sitecustomize; print(sitecustomize.mine)"
    done = subprocess.run([python, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("the user\n1\n", "")


OLD, NEW = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"


def names_left(path: str, **given: str) -> list[str]:
    """Which of the recorder's names a Python keeps, and hands on, where PyTorch is the one on `path`."""
    env = {**os.environ, "PYTHONPATH": f"{SPANK}/python{path}", **given}
    code = "import subprocess; subprocess.run(['env'])"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return sorted(
        row.partition("=")[0] for row in done.stdout.splitlines() if row.startswith(("TORCH_NCCL", "TORCH_FR"))
    )


@pytest.mark.parametrize(
    ("version", "left"),
    [("'2.13.0+cpu'", [NEW]), ("'2.9.0'", [NEW]), ("'2.8.1'", [NEW, OLD]), ("", [NEW, OLD]), ("None", [NEW, OLD])],
)
def test_a_pytorch_that_knows_the_new_names_is_spared_the_old_ones(
    tmp_path: Path, version: str, left: list[str]
) -> None:
    """It warns of them on each rank. Where its version cannot be told, both stay."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('it is not imported')\n")
    (tmp_path / "torch" / "version.py").write_text(f"from typing import Optional\n__version__ = {version}\ndebug = 0\n")
    assert names_left(f":{tmp_path}", **{OLD: "2000", NEW: "2000"}) == left


def test_the_real_pytorch_is_known_and_what_the_user_chose_stays() -> None:
    """The one that the tests run with has the new names."""
    assert names_left("", **{OLD: "2000", NEW: "2000"}) == [NEW]
    assert names_left("", **{OLD: "777", NEW: "2000"}) == [NEW, OLD]
    assert names_left("", **{OLD: "777"}) == [OLD]
