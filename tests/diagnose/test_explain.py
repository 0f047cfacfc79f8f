"""docs/diagnosis.md lists every category, as the rules have them."""

from __future__ import annotations

from pathlib import Path

from slurm_robust.diagnose.explain import MARK, as_markdown
from slurm_robust.diagnose.rulebook import shipped

PAGE = Path(__file__).resolve().parents[2] / "docs" / "diagnosis.md"


def test_the_page_is_what_the_rules_say() -> None:
    """Where they differ: python -m slurm_robust.diagnose.explain docs/diagnosis.md."""
    assert PAGE.read_text().partition(MARK)[2].strip() == as_markdown(shipped()).strip()


def test_every_category_is_in_a_table_once() -> None:
    """Whatever its blame."""
    page = as_markdown(shipped())
    for name in shipped().categories:
        assert page.count(f"\n| {name} | ") == 1
