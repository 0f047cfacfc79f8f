"""The second run of a stage has the site's settings from the first one, and loads no package for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[3]


def test_every_health_check_reads_the_node_in_slurm_conf(tmp_path: Path) -> None:
    """Node names in brackets need a package, in each run: the scripts start Python without packages."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("NodeName=n[1-4] CPUs=1 RealMemory=100\n")
    config = tmp_path / "robust.yaml"
    config.write_text(f"nodecheck: {{cache_dir: {tmp_path}/cache, kmsg: {tmp_path}/kmsg, fresh_s: 0}}\n")
    config.chmod(0o600)
    (tmp_path / "kmsg").write_text("[    1.000000] usb 1-1: message\n")
    code = (
        f"import sys; sys.path.append({str(HOME)!r})\n"
        "from slurm_robust.nodecheck.stages import fast_path, stage_run\n"
        "from slurm_robust.nodecheck.engine import registry\n"
        "registry.select = lambda stage, only, disable: [registry.get(n) for n in ('gpu_count', 'memory', 'cpu')]\n"
        f"stage_run.main('periodic', {str(config)!r}, verbose=True)\n"
    )
    env = {"SLURMD_NODENAME": "n1", "SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code], env=env, capture_output=True, text=True, check=False
        )
        assert "n1: fit, 3 checks" in done.stderr, done.stderr
