"""A node with an NVIDIA driver, and a Python that cannot see it: the doctor's first finding."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_robust.cli.main import cli
from slurm_robust.config.site import NodetestConfig
from slurm_robust.doctor import gpus
from slurm_robust.doctor.advice import Advice, Severity

SIGNS = {
    "the driver's folder in /proc": "proc/driver/nvidia/version",
    "a device file": "dev/nvidia0",
    "a PCI device": "sys/bus/pci/devices/0000:3b:00.0/vendor",
    "the library": "usr/lib64/libnvidia-ml.so.1",
}


def node(root: Path, *signs: str, vendor: str = "0x10de", kind: str = "0x030200") -> Path:
    """A machine with these signs of a GPU."""
    for sign in signs:
        file = root / sign
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{vendor}\n")
        if sign.endswith("vendor"):
            (file.parent / "class").write_text(f"{kind}\n")
    return root


def binding(root: Path, *lacking: str) -> list[Advice]:
    """What is said where these modules are missing."""
    return gpus.check(NodetestConfig(), root, lambda _, module: module not in lacking)


@pytest.mark.parametrize("sign", SIGNS.values(), ids=SIGNS.keys())
def test_each_real_sign_counts(tmp_path: Path, sign: str) -> None:
    """With the command that installs the binding; a library alone may belong to a shared image."""
    (found,) = binding(node(tmp_path, sign), "pynvml")
    assert found.level is (Severity.ADVICE if "lib64" in sign else Severity.WRONG)
    assert "no check sees the GPUs" in found.sentence
    assert found.fix == f"{sys.executable} -m pip install nvidia-ml-py"
    (well,) = binding(tmp_path)
    assert well.level is Severity.OK


def test_a_machine_without_gpus_needs_no_binding(tmp_path: Path) -> None:
    """Nor does one with another maker's display, or with NVIDIA's sound device alone."""
    assert binding(tmp_path, "pynvml", "torch") == []
    node(tmp_path / "a", SIGNS["a PCI device"], vendor="0x1002")
    node(tmp_path / "b", SIGNS["a PCI device"], kind="0x040300")
    assert binding(tmp_path / "a", "pynvml") == binding(tmp_path / "b", "pynvml") == []


def test_the_python_of_the_scripts_is_looked_at_too(tmp_path: Path) -> None:
    """It is not run: its packages are looked up; one that shares the system's packages cannot be judged."""
    node(tmp_path, *SIGNS.values())
    packages = tmp_path / "opt/slurm_robust/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    python = tmp_path / "opt/slurm_robust/bin/python"
    python.parent.mkdir()
    python.write_text("")
    config = tmp_path / "opt/slurm_robust/pyvenv.cfg"
    config.write_text("include-system-site-packages = false\n")
    (wrong,) = [a for a in gpus.check(NodetestConfig(tests=()), tmp_path) if a.level is Severity.WRONG]
    assert wrong.fix == "/opt/slurm_robust/bin/python -m pip install nvidia-ml-py"
    config.write_text("include-system-site-packages = true\n")
    assert not [a for a in gpus.check(NodetestConfig(), tmp_path) if a.level is Severity.WRONG]
    config.write_text("include-system-site-packages = false\n")
    (packages / "pynvml.py").write_text("")
    assert not [a for a in gpus.check(NodetestConfig(), tmp_path) if a.level is Severity.WRONG]


def test_no_pytorch_for_tests_of_two_nodes(tmp_path: Path) -> None:
    """What is lost is said, and which Python is meant; on a machine without GPUs it does not matter."""
    node(tmp_path, "dev/nvidia0")
    (found,) = [a for a in binding(tmp_path, "torch") if a.about == "PyTorch"]
    assert found.level is Severity.ADVICE
    assert "no suspect or standby node is tested with another node" in found.sentence
    (named,) = [a for a in gpus.check(NodetestConfig(python="/gone/python"), tmp_path) if a.about == "PyTorch"]
    assert "/gone/python" in named.sentence
    assert named.fix == "/gone/python -m pip install torch"


def test_it_is_the_first_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before everything else that is wrong."""
    wrong = Advice(Severity.WRONG, gpus.ABOUT, "no binding", "install it")
    monkeypatch.setattr(gpus, "check", lambda _: [wrong])
    said = json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).output)
    assert said["findings"][0] == {"level": "wrong", "about": gpus.ABOUT, "sentence": "no binding", "fix": "install it"}
