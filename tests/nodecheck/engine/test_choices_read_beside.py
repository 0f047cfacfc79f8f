"""A process beside this one parses the configuration, while this one loads the checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.nodecheck.engine import choices

HOME = Path(__file__).resolve().parents[3]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A configuration with something of each shape."""
    config = tmp_path / "robust.yaml"
    config.write_text(
        f"mode: act\nnodecheck: {{cache_dir: {tmp_path}/cache-%n, disable: [matmul], fresh_s: 7, "
        "options: {xid: {ignore: [31]}}, gpu_profiles: {H100: {nvlinks: 18}}}\n"
    )
    config.chmod(0o600)
    return config


def test_read_anew_read_here_and_kept_are_the_same(site: Path) -> None:
    """Whichever way the choices come, and something else is done meanwhile."""
    done: list[str] = []
    anew = choices.load(str(site), "n1", lambda: done.append("loaded"))
    assert anew == choices.of(choices.read(str(site)))
    assert done
    assert (site.parent / "cache-n1" / "choices.json").exists()
    assert choices.load(str(site), "n1") == anew


def test_a_wrong_file_is_told_with_its_line(site: Path) -> None:
    """The other process has nobody to tell."""
    site.write_text("mode: act\nnodecheck:\n  fresh_s: soon\n")
    with pytest.raises(choices.ConfigRejected, match=r"robust\.yaml:3: nodecheck\.fresh_s"):
        choices.load(str(site), "n1")


def test_without_another_process_it_is_read_here(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is out of processes still knows its settings."""

    def no_fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_fork)
    assert choices.load(str(site), "n1").fresh_s == 7


def test_a_cold_prolog_loads_no_parser_and_no_sockets(site: Path) -> None:
    """What a fit node's prolog loads itself: each of these takes as long as several checks."""
    code = (
        f"import sys; sys.path.append({str(HOME)!r})\n"
        "from slurm_robust.nodecheck.stages.fast_path import main\n"
        f"code = main('prolog', {str(site)!r})\n"
        "heavy = {'yaml', 'msgspec', 'socket', 'slurm_robust.core.model', 'slurm_robust.config.site', 'pynvml'}\n"
        "print(code, sorted(heavy & set(sys.modules)))"
    )
    env = {"SLURMD_NODENAME": "n1", "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0 []", done.stderr
