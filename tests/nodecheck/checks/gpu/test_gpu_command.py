"""`srobust check` with GPUs: what robust.yaml says reaches the checks, and drains and spares as it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from fake_gpus import FakeGpus

from slurm_robust.nodecheck.engine import gpu_profiles, registry, runner
from slurm_robust.nodecheck.engine.isolate import Task, run_all
from slurm_robust.nodecheck.nvml import library
from slurm_robust.nodecheck.stages.command import main

ENV = {"SLURMD_NODENAME": "n1"}


def site(gpus: FakeGpus, **more: Any) -> str:
    """A robust.yaml (JSON is YAML) with this library."""
    path = gpus.folder / "robust.yaml"
    chosen = {"nvml_library": str(gpus.library), "cache_dir": str(gpus.cache), "kmsg": "/dev/null", **more}
    path.write_text(json.dumps({"nodecheck": chosen}))
    return str(path)


def test_a_site_s_profile_reaches_the_judge(gpus: FakeGpus, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures of `nodecheck.gpu_profiles` are laid over ours."""
    config = site(gpus, gpu_profiles={"NVIDIA H100 80GB HBM3": {"memory_mib": 90000}})
    assert main(["--config", config, "--only", "gpu_identity", "--json"], ENV) == 1
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert (check["status"], check["reason"]) == ("fail", "memory_missing")
    assert main(["--config", site(gpus), "--only", "gpu_identity"], ENV) == 0


def test_a_wrong_profile_is_a_wrong_configuration(gpus: FakeGpus, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, and the key by its full name."""
    config = site(gpus, gpu_profiles={"X": {"links": 3}})
    assert main(["--config", config, "--only", "gpu_identity"], ENV) == 2
    assert "nodecheck.gpu_profiles.X.links: no such key" in capsys.readouterr().err


def test_a_wrong_mode_is_named_and_drains_nothing(gpus: FakeGpus, capsys: pytest.CaptureFixture[str]) -> None:
    """An option's value that does not exist is a fault of the configuration: unknown, with its name."""
    config = site(gpus, options={"gpu_mig": {"mode": "perhaps"}})
    assert main(["--config", config, "--only", "gpu_mig"], ENV) == 3
    assert "nodecheck.options.gpu_mig.mode: 'perhaps'" in capsys.readouterr().out


def test_the_verdict_says_once_what_all_checks_say(gpus: FakeGpus, capsys: pytest.CaptureFixture[str]) -> None:
    """A driver that does not start is one sentence, and not twenty."""
    gpus.scenario("call.nvmlInitWithFlags=error:999")
    names = "gpu_driver,gpu_ecc,gpu_rows,gpu_power"
    assert main(["--config", site(gpus), "--only", names], ENV) == 3
    assert capsys.readouterr().out.count("NVML cannot be used") == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_plain_user_may_look(fake_library: Path) -> None:
    """No right of root's is needed: what everybody may read gives a finding of each check, and nothing is kept."""
    with tempfile.TemporaryDirectory(prefix="gpus-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        gpus = FakeGpus(fake_library, folder)
        context = gpus.context(cache_dir=folder / "none")

        def look() -> list[str]:
            library.binding()  # where the interpreter's own folders are root's alone, it is found before
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            checks = [registry.get(name) for name in ("gpu_driver", "gpu_rows", "gpu_ecc", "gpu_fabric")]
            return [result.finding.status.value for result in runner.run(checks, context, {}, 20.0).results]

        assert run_all({"x": Task(look, 60.0)})["x"].value == ["pass"] * 4
        assert not (folder / "none").exists()


def test_nothing_heavy_is_imported_before_a_gpu_is_asked(gpus: FakeGpus) -> None:
    """Neither torch nor the binding in the process that only gathers the answers."""
    code = (
        "import sys; from slurm_robust.nodecheck.stages.command import main\n"
        f"assert main(['--config', {site(gpus)!r}, '--only', 'gpu_driver'], {{}}) == 0\n"
        "assert not {'torch', 'pynvml', 'ctypes', 'aiohttp', 'rich', 'click', 'pyslurm'} & sys.modules.keys()"
    )
    env = {"PYTHONPATH": str(Path(__file__).parents[4])}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=env, stdout=subprocess.DEVNULL)


def test_every_key_of_a_profile_is_documented() -> None:
    """docs/checks.md has the table that the code has."""
    text = (Path(__file__).parents[4] / "docs/checks.md").read_text()
    for key, meaning in gpu_profiles.MEANING.items():
        assert f"| `{key}` | {meaning} |" in text
