"""Prolog, epilog and health check are written from one template."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("prolog/srobust-prolog", "epilog/srobust-epilog", "prolog/srobust-healthcheck")


def generator() -> object:
    """The generator, which is a program and no package."""
    spec = importlib.util.spec_from_file_location("generate_node_scripts", ROOT / "scripts/generate_node_scripts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_is_as_the_template_renders_it(script: str) -> None:
    """Edit the template, then run `python scripts/generate_node_scripts.py`."""
    text = (ROOT / script).read_text(encoding="utf-8")
    assert text == generator().rendered(script)  # type: ignore[attr-defined]
    assert "@STAGE@" not in text
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["sh", "-n", str(ROOT / script)], check=True)


def test_no_script_is_forgotten() -> None:
    """The three that slurm.conf names, and no other."""
    assert tuple(generator().SCRIPTS) == SCRIPTS  # type: ignore[attr-defined]
