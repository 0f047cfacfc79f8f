"""Asks for a hint: several samples of one question, within one time limit for all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_robust.config.site import LlmConfig
from slurm_robust.core.text import joined
from slurm_robust.diagnose.root import Diagnosis
from slurm_robust.diagnose.taxonomy import Category
from slurm_robust.hint.client import Endpoint, ask
from slurm_robust.hint.errors import HintError
from slurm_robust.hint.page import LogPage
from slurm_robust.hint.prompt import question, request_body, schema
from slurm_robust.hint.vote import Hint, HintSample, read_answer, vote

_NOT_KNOWN = frozenset({"runtime", "unknown"})


def wanted(diagnosis: Diagnosis) -> bool:
    """Return whether rules do not know the failure: only then a model may be asked."""
    return diagnosis.root is None or diagnosis.category.name in _NOT_KNOWN


def ask_for_hint(
    where: Endpoint, llm: LlmConfig, page: LogPage, categories: Mapping[str, Category], similar: Sequence[str] = ()
) -> tuple[Hint, list[HintSample]]:
    """Return the hint, and the samples that agree with it.

    A request that fails ends the asking: the next request would cost as much time. An unusable answer counts as one
    that does not agree. The asking takes `llm.timeout_s` at most, with any number of samples. `similar` are texts of
    past incidents that looked alike.
    """
    if not page.lines:
        return Hint(reason="the log has no line to ask about"), []
    body = request_body(llm.model, question(page, categories, similar), schema(categories))
    deadline_s = time.monotonic() + llm.timeout_s
    samples: list[HintSample] = []
    problems: dict[str, None] = {}
    for _ in range(llm.samples):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            problems[f"{where.name} took more than {llm.timeout_s:g} s"] = None
            break
        try:
            text = ask(where, body, left_s)
        except HintError as error:
            problems[str(error)] = None
            break
        try:
            samples.append(read_answer(text, page, categories))
        except HintError as error:
            problems[str(error)] = None
    hint = vote(samples, llm.samples, categories)
    reasons = [*problems] if not samples else [text for text in (hint.reason, *problems) if text]
    agreed = [sample for sample in samples if hint.category is not None and sample.category == hint.category.name]
    return replace(hint, reason=joined(reasons), asked=where.name, model=where.model), agreed
