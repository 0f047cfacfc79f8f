"""The scripts start Python without its packages; the configuration and the checks need some of them."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("shared", [True, False])
def test_packages_are_found_in_every_kind_of_virtual_environment(tmp_path: Path, shared: bool) -> None:
    """One that shares the system's packages may hold only some of its own: then the whole search is made."""
    venv.create(tmp_path, system_site_packages=shared, symlinks=True)
    (folder,) = tmp_path.glob("lib/python*/site-packages")
    (folder / "msgspec").mkdir()

    def path_after(call: str) -> set[str]:
        code = f"import sys\nsys.path.append({str(HOME)!r})\n{call}\nprint(*sys.path, sep='\\n')"
        argv = [str(tmp_path / "bin" / "python"), "-I", "-S", "-c", code]
        return set(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())

    whole = path_after("import site; site.main()")
    ours = path_after("from slurm_robust.nodecheck.engine.choices import need_packages; need_packages()")
    assert ours == whole if shared else str(folder) in ours
