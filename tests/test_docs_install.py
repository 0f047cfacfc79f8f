"""The documents' own lines install each role, in a clean folder: what is installed then sees what it must check."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, section
from fake_gpus import compile_fake

PLACES = ("/opt/slurm_robust", "/usr/bin/", "/usr/share/slurm_robust", "/etc/slurm_robust", "/etc/systemd/system/")


def blocks(name: str, heading: str) -> list[list[str]]:
    """The code blocks below a heading, a list of lines each."""
    found = re.findall(r"^ *```\n(.*?)^ *```", section(name, heading), re.MULTILINE | re.DOTALL)
    return [[line.strip() for line in block.splitlines()] for block in found]


class Clean:
    """A folder that stands for `/`, and a shell in the checkout in which the documents' lines are typed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("usr/bin", "etc/systemd/system"):
            (root / folder).mkdir(parents=True)

    def type(self, *lines: str, path: str = "", cwd: Path = ROOT) -> str:
        """Type these lines; returns what they print."""
        typed = "\n".join(lines)
        for place in PLACES:
            typed = re.sub(rf"(?<![\w/]){place}", f"{self.root}{place}", typed)
        env = {"HOME": str(self.root), "PATH": f"{path}{self.root}/usr/bin:{os.environ['PATH']}"}
        env |= {k: v for k, v in os.environ.items() if k.lower().endswith("_proxy") or k.startswith(("PIP_", "SSL_"))}
        env["SROBUST_CONFIG"] = str(self.root / "etc/slurm_robust/robust.yaml")
        done = subprocess.run(
            ["bash", "-euc", typed], check=False, cwd=cwd, env=env, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, f"{typed}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def json(self, *words: str) -> object:
        """What `srobust …` prints, whatever its exit code."""
        return json.loads(self.type(f"{' '.join(words)} || true"))


def test_each_role_has_a_block_of_lines() -> None:
    """Quick to see, on every run: the slow test below types them."""
    node, torch, look, watch = blocks("docs/operations.md", "Node")
    assert any("pip install .\n" in f"{line}\n" for line in node)
    assert torch == ["/opt/slurm_robust/bin/pip install torch"]
    assert [line.split(" #")[0].strip() for line in look] == ["srobust check", "srobust doctor"]
    assert "srobust-nodewatch" in watch[0]
    (daemon,) = blocks("docs/operations.md", "Daemon")
    assert daemon[0] == "/opt/slurm_robust/bin/pip install '.[daemon]'"
    _, replaced, nodes = blocks("docs/operations.md", "Upgrade")
    assert daemon[0] in replaced
    assert replaced.index("cp -a /var/lib/slurm_robust /var/lib/slurm_robust.before") < replaced.index(daemon[0])
    assert [line for line in node if "pip install" in line or "install -D -m 755" in line] == nodes[:3]
    training = blocks("docs/engineer.md", "Step 0: the package in your training's environment")
    assert training[0] == ["pip install .", "pip install --no-deps . && pip install msgspec numpy xxhash"]


@pytest.mark.variant
@pytest.mark.timeout(1800)
def test_a_node_and_a_daemon_installed_by_the_documents(tmp_path: Path) -> None:
    """A node sees its GPUs through NVIDIA's binding, without PyTorch; the daemon's machine has what its pages need."""
    clean = Clean(tmp_path / "root")
    node, _, _, watch = blocks("docs/operations.md", "Node")
    clean.type(*node)
    assert (clean.root / "usr/share/slurm_robust/prolog/srobust-healthcheck").stat().st_mode & 0o111
    fake = compile_fake(tmp_path)
    fake.chmod(0o755)
    site = f"nodecheck:\n  nvml_library: {fake}\n  cache_dir: {clean.root}/run\n"
    (clean.root / "etc/slurm_robust/robust.yaml").write_text(site)
    checked = clean.json("srobust check --only gpu_driver,gpu_ecc,gpu_identity --json")
    assert isinstance(checked, dict)
    assert {c["name"]: c["status"] for c in checked["checks"]}["gpu_driver"] == "pass", checked
    assert "unknown" not in {c["status"] for c in checked["checks"]}
    full = clean.json("srobust check --json")
    assert isinstance(full, dict)
    lacking = [c for c in full["checks"] if "not installed" in c["sentence"] and c["status"] != "skip"]
    assert lacking == []
    clean.type(watch[0], *(line for line in watch if line.startswith("srobust nodewatch")))
    # An upgrade replaces every file, also where the version is the same.
    old = next((clean.root / "opt/slurm_robust/lib").glob("python3*/site-packages/slurm_robust/core/text.py"))
    old.write_text("raise ImportError('old')\n")
    (clean.root / "usr/share/slurm_robust/prolog/srobust-prolog").write_text("old")
    *_, upgrade = blocks("docs/operations.md", "Upgrade")
    clean.type(*(line for line in upgrade if "systemctl" not in line and not line.startswith("srobust ")))
    clean.type("srobust check --only memory")
    assert (clean.root / "usr/share/slurm_robust/prolog/srobust-prolog").read_text() != "old"
    # A binding that was lost: the command that is advised brings it back.
    python = clean.root / "opt/slurm_robust/bin/python"
    clean.type(f"{python} -m pip uninstall --yes nvidia-ml-py")
    blind = clean.json("srobust check --only gpu_driver --json")
    assert isinstance(blind, dict)
    (found,) = blind["checks"]
    assert (found["status"], found["reason"]) == ("unknown", "nvml_no_binding")
    clean.type(found["remedy"])
    assert "pass" in clean.type("srobust check --only gpu_driver")
    (daemon,) = blocks("docs/operations.md", "Daemon")
    clean.type(*(line for line in daemon if "systemctl" not in line and "status" not in line))
    clean.type(f"{python} -c 'import slurm_robust.daemon.api.http, slurm_robust.notify.outlet'")
    clean.type("srobustd --help >/dev/null")
    assert (clean.root / "etc/systemd/system/srobustd.service").is_file()


@pytest.mark.variant
@pytest.mark.timeout(900)
def test_a_training_environment_by_the_documents(tmp_path: Path) -> None:
    """Both lines, each in an environment of its own, and the line that shows that it works."""
    clean = Clean(tmp_path / "root")
    ways, *_, check = blocks("docs/engineer.md", "Step 0: the package in your training's environment")
    for number, way in enumerate(ways):
        venv = tmp_path / f"training{number}"
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=120)
        clean.type(way, path=f"{venv}/bin:")
        assert str(venv) in clean.type(*check, path=f"{venv}/bin:", cwd=tmp_path)


def test_each_service_with_settings_can_be_reloaded() -> None:
    """Those that read robust.yaml do so again at SIGHUP; one that reads none says so."""
    for unit in Path("docs/systemd").glob("*.service"):
        text = unit.read_text()
        assert ("robust.yaml\n" in text and "ExecReload=/bin/kill -HUP $MAINPID\n" in text) != (
            "it has nothing to reload" in text
        ), unit
