"""Prints the section "Grades of evidence" of docs/localization.md; `--write` puts it into the page.

The grades and what is seen come from `localize.grades`, what may be done about them from `policy.job.consequences`,
the numbers from the defaults of the configuration. A test compares the page with what this program prints.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.core.model import Grade
from slurm_robust.localize.grades import Ground
from slurm_robust.policy.job.consequences import CONSEQUENCES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "localization.md"
BEGIN = "<!-- scripts/grades.py writes from here -->"
END = "<!-- scripts/grades.py writes to here -->"
_INTRODUCTION = """## Grades of evidence

Each verdict has a *grade*: how sure the evidence is that it rests on. The grade alone decides what may be done, and
when. If a verdict names several suspects, it has the grade of the least sure one. Until its time has come, a verdict
is only announced and captured again, and a step that completes cancels it.

| grade | what is seen | what may be done | when |
|---|---|---|---|
"""
_PATIENCE = """
### Patience

The time of a grade is its *patience*. It counts from the newest sign of progress of any rank, and it is learnt:

* A training keeps the longest pause of each kind that has ended by itself: before the first step, between steps, and
  in each phase that the program announces (`evaluate`, `checkpoint`, `idle`). It keeps them over restarts and
  requeues. The time between the first two steps counts as start-up, too. A pause that ended because we did something
  is not kept.
* Nothing is done before {factor:g} × the longest pause of the same kind (`supervise.healthy_pause_factor`), however
  short the patience of the grade is. A training whose checkpoints have taken {pause_s:g} s is not acted on in a
  checkpoint before {learnt_s:g} s.
* The action limit, too, is never shorter than that. Only a limit that the program itself has announced is.
* A rank that stands in code of its own (a lock, a sleep, a socket), or is busy there, is weak evidence only while all
  others are known to wait for peers: in a collective of a library that srobust knows, or in the backward pass. Where
  they wait in one that was written by hand (plain sockets), a healthy service that waits for requests looks the same.
  Then nothing is done before the action limit. People are told after {weak_s:g} s, or {factor:g} × the longest pause,
  by the message `hang` and by the first line of `srobust status`; also if nobody can be named, as long as all
  ranks stand at one place each and at least half of them rest.
* If an attempt was restarted on weak evidence, its pause may have been a healthy one that nobody let end: weak evidence
  of the next one is given {factor:g} × as long.
* In an announced phase, nothing is done on strong or weak evidence before one such phase has ended: only the action
  limit counts, or the limit that the program announced.
* Before the first step there is no pause to learn from. Strong evidence then has the patience of weak evidence
  ({weak_s:g} s).

A rank that is stopped by a signal is first continued: `supervise.continue_stopped_after_s` ({continue_s:g} s) after
the last sign of progress its node's agent sends it SIGCONT, once. That is not done if a debugger traces it, if more
than half of the ranks are stopped (then the job is suspended), if its node has reported a fault, or for a helper or a
child of a rank. In a job that reports no progress it is done only if captures have shown for as long that all others
wait in a collective, without data and without using a processor.
"""


def rows() -> str:
    """The rows of the table, the surest grade first."""
    made = []
    for grade in (Grade.CERTAIN, Grade.STRONG, Grade.WEAK, Grade.NONE):
        seen = "<br>".join(f"• {ground.meaning}" for ground in Ground if ground.grade is grade)
        consequence = CONSEQUENCES[grade]
        made.append(f"| **{grade.value}** | {seen} | {consequence.what} | {consequence.when} |\n")
    return "".join(made)


def section() -> str:
    """The section, between its two marks."""
    config, pause_s = SuperviseConfig(), 200.0
    patience = _PATIENCE.format(
        factor=config.healthy_pause_factor,
        pause_s=pause_s,
        learnt_s=config.healthy_pause_factor * pause_s,
        weak_s=config.weak_patience_s,
        continue_s=config.continue_stopped_after_s,
    )
    return f"{BEGIN}\n{_INTRODUCTION}{rows()}{patience}{END}"


def with_section(page: str) -> str:
    """The page with this section in the place of the one between its marks.

    Raises:
        ValueError: The page has no such marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}, between which the section is written")
    return before + section() + after


def main() -> None:
    """Print the section, or write it into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write it into docs/{PAGE.name} instead of printing it")
    if parser.parse_args().write:
        PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(section())


if __name__ == "__main__":
    main()
