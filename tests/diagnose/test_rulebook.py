"""Rules are data: each recognises its own examples, and a mistake in a site's file is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.cli.commands.diagnose_rules import wrong_examples
from slurm_robust.diagnose.findings import Matcher, findings
from slurm_robust.diagnose.hints import hints
from slurm_robust.diagnose.lines import unlabelled
from slurm_robust.diagnose.root import diagnose
from slurm_robust.diagnose.rulebook import Rule, RuleError, read, shipped
from slurm_robust.diagnose.taxonomy import Blame

PREFIXES = ("", "3: ", "[rank3]: ", "[default0]:", "2026-01-02 03:04:05,678 ", "[1,0]<stderr>:", "\x1b[31m")
GOOD = """
rules:
- id: our-gateway
  category: storage
  pattern: 'gateway \\d+ is down'
  blame: node
  remedy: "Call the storage team."
  source: https://wiki.example.org/storage
  examples: ["error: gateway 7 is down, giving up", "gateway 12 is down"]
"""


def test_each_rule_recognises_its_own_examples() -> None:
    """And no earlier rule takes them."""
    assert wrong_examples(shipped(), list(shipped().rules)) == []


@pytest.mark.parametrize("rule", shipped().rules, ids=lambda rule: rule.id)
def test_an_example_is_recognised_behind_labels(rule: Rule) -> None:
    """Of srun, torchrun, mpirun and loggers: the category stays the same."""
    matcher = Matcher(shipped())
    for prefix in PREFIXES[:-2]:
        found = findings([prefix + rule.examples[0]], rules=matcher)
        assert [f.category.name for f in found] == [rule.category.name], prefix + rule.examples[0]


@pytest.mark.parametrize("rule", [rule for rule in shipped().rules if rule.pattern], ids=lambda rule: rule.id)
def test_a_line_that_matches_has_one_of_the_hints(rule: Rule) -> None:
    """Lines without a hint are not searched, so that nothing that matches may lack all of them."""
    words = hints(rule.pattern)
    assert words, "a pattern without hints is tried on every line"
    for line in rule.examples:
        assert any(word in unlabelled(line).lower() for word in words)


def test_every_category_has_a_remedy_and_a_sentence() -> None:
    """The page for people is made of them."""
    for category in shipped().categories.values():
        assert category.meaning.endswith(".")
        assert category.remedy.endswith((".", "!", "`."))


def test_a_sites_rules_are_tried_first(tmp_path: Path) -> None:
    """They may have a blame and a remedy of their own."""
    path = tmp_path / "site.yaml"
    path.write_text(GOOD)
    matcher = Matcher(read([path]))
    found = diagnose(findings(["OSError: [Errno 5] Input/output error", "gateway 7 is down"], rules=matcher))
    assert [f.rule.id for f in findings(["gateway 7 is down"], rules=matcher)] == ["our-gateway"]
    assert found.category.name == "storage"
    (rule,) = [rule for rule in read([path]).rules if rule.id == "our-gateway"]
    assert (rule.blame, rule.remedy, rule.place) == (Blame.NODE, "Call the storage team.", f"{path}:3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("storage\n", "stroage\n", 1), ":3: category 'stroage' is not known"),
        (GOOD.replace("id:", "name:"), ":3: unknown key 'name'"),
        (GOOD.replace("gateway \\d+ is down'", "gateway ( is down'"), ":3: pattern is not a regular expression"),
        (GOOD.replace("gateway \\d+ is down'", "(gateway)?'"), ":3: pattern matches the empty line"),
        (GOOD.replace("blame: node", "blame: them"), ":3: blame 'them' is not one of node"),
        (GOOD.replace(', "gateway 12 is down"', ""), ":3: examples must be two lines or more"),
        (GOOD.replace("blame: node", "weight: heavy"), ":3: weight must be a number"),
        (GOOD.replace("our-gateway", "gpu-oom"), "the id gpu-oom is taken"),
        ("rules: 7\n", "the file must have one key, `rules`"),
        ("rules: [7]\n", "a rule must have keys"),
        ("rules:\n- id: [\n", ":3: "),
        ("\x00", "cannot be read|: "),
    ],
)
def test_a_mistake_is_told_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    """All mistakes of all files at once."""
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(RuleError) as caught:
        read([path])
    assert any(part in str(caught.value) for part in message.split("|"))
    assert str(path) in str(caught.value)


def test_a_file_that_is_no_text_or_too_long_is_refused(tmp_path: Path) -> None:
    """It is named, and nothing else is read."""
    path = tmp_path / "site.yaml"
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(RuleError, match="cannot be read"):
        read([path])
    path.write_bytes(b"#" * (5 << 20))
    with pytest.raises(RuleError, match="not a file of rules"):
        read([path])
    with pytest.raises(RuleError, match="cannot be read"):
        read([tmp_path / "none.yaml"])


def test_a_pattern_that_backtracks_for_ever_is_left_out(tmp_path: Path) -> None:
    """It costs a moment, once, and all other rules go on."""
    path = tmp_path / "site.yaml"
    path.write_text(GOOD.replace("gateway \\d+ is down", "(?:a|aa)+(?:a|aa)+(?:a|aa)+b").replace("7 is down", "aab"))
    matcher = Matcher(read([path]))
    lines = ["a" * 1500 + "c", "KeyError: 'x'", "a" * 1500 + "d"]
    assert [f.rule.id for f in findings(lines, rules=matcher)] == ["key"]
    assert [rule.id for rule in matcher.slow_rules] == ["our-gateway"]
