"""`srobust diagnose rules --review`: shows rules that hints have proposed, and adds one to the site's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from slurm_robust.cli.hinting import expanded, llm_config
from slurm_robust.hint.errors import HintError
from slurm_robust.hint.masking import one_line
from slurm_robust.hint.proposal import RuleProposal, accept, proposals


def review_folder(given: str, config: str | None) -> Path:
    """Return the folder that was typed, else the site's."""
    return expanded(given or llm_config(config).review_dir)


def review_rules(folder: Path, wanted: str | None, into: Path | None, *, as_json: bool) -> None:
    """Show what waits in the folder; or accept one of it."""
    if wanted is not None:
        if into is None:
            raise click.UsageError("--accept needs --rules FILE: the site's rules, to which it is added")
        try:
            accept(folder, wanted, into)
        except HintError as error:
            raise click.UsageError(str(error)) from None
        click.echo(f"{wanted} is now a rule of {into}")
        return
    found, problems = proposals(folder)
    for problem in problems:
        click.echo(f"srobust diagnose: {problem}", err=True)
    if as_json:
        click.echo(json.dumps([_json(folder, proposal) for proposal in found], indent=1))
        return
    if not found:
        click.echo(f"no proposal waits in {folder}")
    for proposal in found:
        click.echo("\n".join(_lines(proposal)))


def _lines(proposal: RuleProposal) -> list[str]:
    return [
        f"{proposal.id}: {proposal.category} (confidence {proposal.confidence:.2f})",
        f"    cause:   {proposal.cause}",
        f"    pattern: {one_line(proposal.pattern)[:300]}",
        *(f"    example: {one_line(example)[:200]}" for example in proposal.examples),
        f"    source:  {proposal.source}",
    ]


def _json(folder: Path, proposal: RuleProposal) -> dict[str, Any]:
    return {
        "id": proposal.id, "category": proposal.category, "pattern": proposal.pattern,
        "examples": list(proposal.examples), "cause": proposal.cause, "confidence": proposal.confidence,
        "source": proposal.source, "file": str(folder / f"{proposal.id}.yaml"),
    }  # fmt: skip
