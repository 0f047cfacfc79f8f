"""The prolog's way in, with eight GPUs that NVML makes up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fake_gpus import FakeGpus

HOME = Path(__file__).parents[4]


def prolog(gpus: FakeGpus) -> str:
    """What a prolog says that tells all; Python without its packages, as the scripts start it."""
    config = gpus.folder / "robust.yaml"
    if not config.exists():
        (gpus.folder / "kmsg").write_text("Linux version 6.1.0\n")
        names = "filesystem, shm, memory, ethernet, leftovers, default_route, settings, limits, tasks, cpu, date"
        config.write_text(
            f"nodecheck: {{kmsg: {gpus.folder}/kmsg, cache_dir: {gpus.cache}, nvml_library: {gpus.library}, "
            f"deadline_s: 30, disable: [{names}]}}\n"
        )
    code = (
        f"import sys\nsys.path.append({str(HOME)!r})\nfrom slurm_robust.nodecheck.stages.fast_path import main\n"
        f"sys.exit(main('prolog', {str(config)!r}, 'v'))"
    )
    argv = [sys.executable, "-I", "-S", "-c", code]
    env = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "42"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stderr


def test_nvml_is_asked_whether_the_choices_are_kept_or_not(gpus: FakeGpus) -> None:
    """The second whole look loads no YAML, and still finds NVIDIA's binding; after it there is a fresh verdict."""
    assert "n1: fit" in prolog(gpus)
    assert "cached verdict: " in prolog(gpus)
    (gpus.cache / "fresh").unlink()
    assert "n1: fit" in prolog(gpus)
    (gpus.cache / "fresh").unlink()
    gpus.scenario("gpu.3.rows.failed=1")
    assert "n1: unfit" in prolog(gpus)
