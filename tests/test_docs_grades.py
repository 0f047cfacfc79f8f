"""The page of grades is what the code says."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest
from documents import ROOT, text_of

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.localize.grades import Ground
from slurm_robust.policy.job.consequences import CONSEQUENCES

_UNITS = {"s": 1.0, "min": 60.0}


@pytest.fixture(scope="module")
def grades() -> ModuleType:
    """The generator, which is a program and no package."""
    spec = importlib.util.spec_from_file_location("grades", ROOT / "scripts" / "grades.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_section_that_the_program_writes(grades: ModuleType) -> None:
    """After a change of grades or consequences: .venv/bin/python scripts/grades.py --write."""
    page = text_of("docs/localization.md")
    assert grades.with_section(page) == page


def test_every_ground_and_every_consequence_stands_in_the_table(grades: ModuleType) -> None:
    """A new kind of evidence cannot be left out of it."""
    table = grades.rows()
    assert [ground for ground in Ground if ground.meaning not in table] == []
    assert [grade for grade, what in CONSEQUENCES.items() if what.what not in table or what.when not in table] == []


def test_a_page_without_the_marks_is_not_written(grades: ModuleType) -> None:
    """The message says what the page needs."""
    with pytest.raises(ValueError, match="the page needs the lines"):
        grades.with_section("# Who is at fault?\n")


def test_the_defaults_that_the_section_names_are_the_codes(grades: ModuleType) -> None:
    """`supervise.weak_patience_s` (5 min) is 300 s."""
    named = re.findall(r"`supervise\.(\w+)` \((\d+) (s|min)\)", grades.section())
    assert len(named) >= 4
    for key, number, unit in named:
        assert getattr(SuperviseConfig(), key) == float(number) * _UNITS[unit], key


def test_the_readme_links_the_page() -> None:
    """How soon what is acted on stands there in short, with the same numbers."""
    text = text_of("README.md")
    assert "(docs/localization.md#grades-of-evidence)" in text
    config = SuperviseConfig()
    assert f"{config.strong_patience_s:g} s without progress" in text
    assert f"{config.weak_patience_s / 60:g} min without progress" in text
    assert f"{config.action_limit_s / 60:g} min" in text
