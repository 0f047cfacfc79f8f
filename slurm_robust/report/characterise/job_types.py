"""Tells a job's purpose by its name, as Acme did; `other` if the name does not tell."""

from __future__ import annotations

import re
from collections.abc import Mapping

OTHER = "other"
OURS = "checks by slurm_robust"
_OURS = re.compile(r"srobust-(?:recheck|standby-check|pair-test)(?![a-z])")
"""Names that the daemon gives to its own jobs."""
PATTERNS: Mapping[str, str] = {
    "debugging": r"debug|interactive|jupyter|notebook|(?<![a-z])(?:test|tmp|try|bash|wrap)(?![a-z])",
    "evaluation": r"eval|benchmark|mmlu|gsm8k|humaneval|leaderboard",
    "alignment": r"(?<![a-z])(?:sft|rlhf|dpo|ppo|grpo|lora)(?![a-z])|fine-?_?tun|align|instruct",
    "pretraining": r"pre-?_?train|(?<![a-z])pt(?![a-z])",
    "data": r"token|(?<![a-z])(?:data|dataset|prep|preprocess|dedup|download|crawl)(?![a-z])",
    "serving": r"serv(?:e|ing)|infer|vllm|sglang|gradio|(?<![a-z])api(?![a-z])",
}
"""Type → regular expression, searched in the name in lower case; the first that matches counts."""
MAX_NAME_CHARS = 200
_REMEMBERED = 50_000


class JobTypes:
    """Tells types by patterns, and remembers names: most jobs share theirs with others."""

    def __init__(self, patterns: Mapping[str, str] | None = None) -> None:
        self._patterns = {kind: re.compile(text) for kind, text in (patterns or PATTERNS).items()}
        self._known: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Return the type of a job of this name."""
        known = self._known.get(name)
        if known is None:
            short = name[:MAX_NAME_CHARS].lower()
            kinds = (kind for kind, pattern in self._patterns.items() if pattern.search(short))
            known = OURS if _OURS.match(short) else next(kinds, OTHER)
            if len(self._known) < _REMEMBERED:
                self._known[name] = known
        return known
