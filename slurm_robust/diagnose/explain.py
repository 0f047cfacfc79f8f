"""Writes the explanation of the categories into docs/diagnosis.md.

`python -m slurm_robust.diagnose.explain docs/diagnosis.md` writes the generated half of that page anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

from slurm_robust.diagnose.rulebook import RuleBook, shipped
from slurm_robust.diagnose.taxonomy import Blame

MARK = "<!-- From here on written by `python -m slurm_robust.diagnose.explain docs/diagnosis.md`. -->"
_TITLES = {
    Blame.NODE: "A machine's",
    Blame.EITHER: "A machine's or the program's",
    Blame.SHARED: "Of something that nodes share",
    Blame.PROGRAM: "The program's",
    Blame.NOBODY: "Nobody's: somebody wanted the end",
}


def as_markdown(book: RuleBook) -> str:
    """Return a table for each kind of blame: every category with its meaning, its remedy, and an example line."""
    lines = []
    for blame, title in _TITLES.items():
        lines += ["", f"## {title}", "", "| category | what happened | what to do | for example |", "|---|---|---|---|"]
        for category in book.categories.values():
            if category.blame is not blame:
                continue
            examples = [rule.examples[0] for rule in book.rules if rule.category is category]
            example = f"`{_cell(examples[0].strip()[:110])}`" if examples else ""
            follows = " Only a consequence." if category.consequence else ""
            lines.append(
                f"| {category.name} | {_cell(category.meaning)}{follows} | {_cell(category.remedy)} | {example} |"
            )
    return "\n".join(lines).strip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'") if text.count("`") % 2 else text.replace("|", "\\|")


def main(argv: list[str]) -> None:
    """Write the generated half of the page."""
    page = Path(argv[0])
    kept = page.read_text().partition(MARK)[0]
    page.write_text(f"{kept}{MARK}\n\n{as_markdown(shipped())}")


if __name__ == "__main__":
    main(sys.argv[1:])
