"""Asks for the hint of `srobust diagnose --hint`: says who is asked, keeps the proposed rule, and shows the answer."""

from __future__ import annotations

import getpass
import itertools
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from slurm_robust.config import site as configuration
from slurm_robust.config.site import LlmConfig
from slurm_robust.diagnose.findings import Matcher
from slurm_robust.diagnose.resembling import Resemblance
from slurm_robust.diagnose.root import Diagnosis
from slurm_robust.diagnose.rulebook import RuleBook
from slurm_robust.diagnose.telling import telling_lines
from slurm_robust.hint.errors import HintError
from slurm_robust.hint.masking import mask
from slurm_robust.hint.page import LogPage, PageLines
from slurm_robust.hint.prompt import question
from slurm_robust.hint.vote import Hint, HintSample


class Hinting:
    """The parts that a hint of one run needs: the site's endpoint, the rules, and the lines of the log."""

    def __init__(self, llm: LlmConfig, book: RuleBook, matcher: Matcher) -> None:
        self._lines = PageLines()
        self._llm = llm
        self._book = book
        self._matcher = matcher
        self._similar: list[str] = []
        self._names = _names_here()

    def add(self, lines: Sequence[tuple[str, int, str]]) -> None:
        """Keep what a page may need of all lines, each with its file and its number there."""
        runs = [(path, len(list(run))) for path, run in itertools.groupby(lines, key=lambda line: line[0])]
        if len(runs) > len({path for path, _ in runs}):  # files that were put in order by time are one stream
            runs = [("", len(lines))]
        first = 0
        for _, count in runs:
            texts = [text for _, _, text in lines[first : first + count]]
            self._lines.add(texts, telling_lines(texts, self._book, self._matcher), first)
            first += count

    def remember(self, resembles: Iterable[Resemblance], nodes: Sequence[str] = ()) -> None:
        """Tell the model of past incidents of the same failure, and mask the names of the job's nodes."""
        self._names += nodes
        self._similar = [mask(_past_text(one), (*self._names, *one.past.nodes)) for one in resembles]

    def question(self) -> str:
        """Return all text that a hint would send."""
        messages = question(self._page(), self._book.categories, self._similar)
        return "\n\n".join(message["content"] for message in messages)

    def hint(self, diagnosis: Diagnosis, places: Sequence[tuple[str, int]]) -> dict[str, Any]:
        """Return the hint as JSON has it. Without one its `reason` says why; the diagnosis stays as it is."""
        # A run without --hint pays for no TLS.
        from slurm_robust.hint.asking import ask_for_hint, wanted  # noqa: PLC0415
        from slurm_robust.hint.client import endpoint  # noqa: PLC0415

        llm = self._llm
        if not wanted(diagnosis):
            return _json(Hint(reason="not asked: a rule knows what broke"), places)
        if not llm.url:
            return _json(Hint(reason="not asked: diagnose.llm.url in robust.yaml names no endpoint"), places)
        try:
            where = endpoint(llm.url, llm.model, llm.key_file)
        except HintError as error:
            return _json(Hint(reason=f"not asked: {error}"), places)
        page = self._page()
        size_bytes = sum(len(line.text.encode()) for line in page.lines)
        click.echo(
            f"srobust diagnose: asks {llm.model} at {where.name}, {llm.samples} times within {llm.timeout_s:g} s, "
            f"and sends {len(page.lines)} masked lines of the log ({size_bytes} bytes)"
            f"{f' and {len(self._similar)} past incidents' if self._similar else ''}; --hint-page shows them",
            err=True,
        )
        hint, agreed = ask_for_hint(where, llm, page, self._book.categories, self._similar)
        return _json(hint, places, *self._proposal(hint, agreed, page))

    def _page(self) -> LogPage:
        return self._lines.page(self._names, self._llm.page_bytes)

    def _proposal(self, hint: Hint, agreed: Sequence[HintSample], page: LogPage) -> tuple[str, str]:
        """Return the file of the proposed rule, and why there is none."""
        from slurm_robust.hint import proposal  # noqa: PLC0415 (as above)

        if hint.category is None:
            return "", ""
        try:
            made = proposal.propose(hint, agreed, page, self._book)
            return str(proposal.save(expanded(self._llm.review_dir), made)), ""
        except HintError as error:
            return "", str(error)


def hinting_for(config: str | None, book: RuleBook, matcher: Matcher) -> Hinting:
    """Return the hinting that the site's configuration asks for."""
    return Hinting(llm_config(config), book, matcher)


def llm_config(path: str | None) -> LlmConfig:
    """Return `diagnose.llm` of robust.yaml; a mistake in that file is wrong usage."""
    try:
        return configuration.load(path).diagnose.llm
    except configuration.ConfigError as error:
        raise click.UsageError(str(error)) from None


def hint_text(hint: dict[str, Any]) -> list[str]:
    """Return the lines of a hint, as `srobust diagnose` shows them below its diagnosis."""
    if hint["category"] is None:
        return [f"hint:       none: {hint['reason']}"]
    lines = [
        f"hint:       perhaps {hint['category']}: {hint['cause']}",
        f"            {hint['agreeing']} of {hint['samples']} answers of {hint['model']} agree; a guess, not a finding",
    ]
    if hint["line"] is not None:
        lines.append(f"            {hint['line']['text'][:160]} ({hint['line']['file']}:{hint['line']['line']})")
    lines.append(f"            if it is so: {hint['remedy']}")
    if hint["reason"]:
        lines.append(f"            {hint['reason']}")
    if hint["proposal"]:
        lines.append(f"            a rule is proposed: srobust diagnose rules --review {Path(hint['proposal']).parent}")
    elif hint["no_proposal"]:
        lines.append(f"            {hint['no_proposal']}")
    return lines


def expanded(folder: str) -> Path:
    """Return a folder of the configuration, with `~` as the user's home."""
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        return Path(folder)


def _names_here() -> list[str]:
    """Return the names of this machine, this user and the job's nodes in Slurm, which are masked everywhere."""
    names = [platform.node(), platform.node().split(".")[0], os.environ.get("SLURMD_NODENAME", "")]
    try:
        names.append(getpass.getuser())
    except (KeyError, OSError):
        names.append("")
    return [name for name in names if name]


def _past_text(one: Resemblance) -> str:
    """Return a past incident for a model: the failure, and its outcome. Other jobs' free text stays here."""
    past = one.past
    helped = {True: "training came further after it", False: "it did not help", None: "not known to have helped"}
    what = past.cause.get("line") or past.cause.get("category") or "the same message"
    return f"{what}; done: {past.done or 'nothing'}; {helped[past.helped]}"


def _json(hint: Hint, places: Sequence[tuple[str, int]], proposal: str = "", no_proposal: str = "") -> dict[str, Any]:
    line = None
    if hint.line is not None:
        path, number = places[hint.line.number]
        line = {"file": path, "line": number, "text": hint.line.text.strip()}
    return {
        "category": hint.category.name if hint.category is not None else None, "cause": hint.cause,
        "confidence": round(hint.confidence, 3), "agreeing": hint.agreeing, "samples": hint.samples,
        "remedy": hint.category.remedy if hint.category is not None else "", "line": line, "asked": hint.asked,
        "model": hint.model, "reason": hint.reason, "proposal": proposal, "no_proposal": no_proposal,
    }  # fmt: skip
