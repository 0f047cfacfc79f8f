"""What the documents say of the node checks: how many there are, and their names."""

from __future__ import annotations

import re

from documents import (
    DOCUMENTS,
    ROOT,
    section,
    spans,
    typed,
)

from slurm_robust.marks.remedy import Remedy
from slurm_robust.nodecheck.catalogue import kernel_patterns
from slurm_robust.nodecheck.engine import registry


def test_numbers_of_checks_are_the_registrys() -> None:
    """How many there are in all and in each group, and of how many kinds of trouble the kernel log tells."""
    text = section("docs/checks.md", "The node checks")
    assert re.search(r"There are \d+ checks", text)
    named = re.findall(r"(\d+) in `(\w+)`", text)
    assert {group: int(count) for count, group in named} == {g: len(names) for g, names in registry.GROUPS.items()}
    for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        for count in re.findall(r"[Tt]here are (\d+) (?:node )?checks\b", path.read_text("utf-8")):
            assert int(count) == len(registry.NAMES), f"{path.name}: {count} checks"
        for count in re.findall(r"\b(\d+) kinds of trouble", path.read_text("utf-8")):
            assert int(count) == len(kernel_patterns.KINDS), f"{path.name}: {count} kinds of trouble"


def test_checks_that_the_documents_name_exist() -> None:
    """By the beginnings of their names, and in examples of `--only`."""
    for path in DOCUMENTS:
        for name in {span for span in spans(path) if re.fullmatch(r"(?:gpu|rdma|ethernet|kernel)_[a-z0-9_]+", span)}:
            assert name in (*registry.NAMES, Remedy.GPU_RESET.value), f"{path.name}: {name}"
        for words in typed(path):
            if words[0] == "check" and "--only" in words:
                for name in words[words.index("--only") + 1].split(","):
                    assert registry.checks_of(name), f"{path.name}: --only {name}"


def test_no_document_denies_a_check_that_there_is() -> None:
    """`There is no NVML check`: once true, and long false when somebody looked."""
    checks = registry.select("full")
    known = " ".join(f"{check.name} {check.question} {check.reads}" for check in checks).lower()
    for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        for denied in re.findall(r"\bno ((?:\w+(?:, | or | and )?)+) checks?\b", path.read_text("utf-8")):
            for name in re.split(r", | or | and ", denied):
                assert name.lower() not in known, f"{path.name}: no {name} check"
