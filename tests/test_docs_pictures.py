"""The picture of the story is what its program draws from the times of a real run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

from documents import ROOT, text_of

from slurm_robust.core.model import TIME_KEYS

PICTURES = ROOT / "docs" / "pictures"


def test_the_picture_of_the_story_is_what_the_program_draws(tmp_path: Path) -> None:
    """Byte for byte; where they differ: python docs/pictures/draw_story.py."""
    for name in ("draw_story.py", "story.json"):
        shutil.copy(PICTURES / name, tmp_path)
    subprocess.run([sys.executable, "-I", str(tmp_path / "draw_story.py")], check=True, timeout=30)
    drawn = (tmp_path / "story.svg").read_text("utf-8")
    assert drawn == (PICTURES / "story.svg").read_text("utf-8"), "python docs/pictures/draw_story.py"
    assert ET.fromstring(drawn).tag.endswith("svg")


def test_the_storys_times_are_an_incidents_times() -> None:
    """All of the scoreboard's keys but those of tests, which a named culprit needs none of, in order of time."""
    times = json.loads((PICTURES / "story.json").read_text("utf-8"))["incident_s"]
    assert set(times) == {*TIME_KEYS, "accepted"} - {"tests_started", "tests_done"}
    assert list(times.values()) == sorted(times.values())


def test_the_readme_tells_of_the_same_run() -> None:
    """Picture and text give the same seconds and date, and the README shows the picture."""
    story, text = json.loads((PICTURES / "story.json").read_text("utf-8")), text_of("README.md")
    assert "(docs/pictures/story.svg)" in text
    steps, times = story["steps"], story["incident_s"]
    step = f"first step {steps['first_new']} ({steps['last']} had been reached)"
    assert f"{step}, {times['first_new_step']:.1f} s" in text
    assert f"Slurm {story['slurm'].rpartition('.')[0]}" in text
