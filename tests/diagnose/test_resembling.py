"""Past incidents that were the same failure."""

from __future__ import annotations

from slurm_robust.diagnose.findings import findings
from slurm_robust.diagnose.resembling import ALIKE, SAME, TEXT, PastIncident, resembling
from slurm_robust.diagnose.signature import signature

LINE = "RuntimeError: shape '[8, 4]' is invalid for input of size 33"
(ROOT,) = findings([LINE])
SIGNATURE = signature(ROOT)
CATEGORY = ROOT.category.name


def past(name: str, at_s: float = 1.0, text: str = "", **cause: str) -> PastIncident:
    """One of the journal."""
    return PastIncident(name, "1", at_s, cause=cause, text=text)


def names(*given: PastIncident, most: int = 5) -> list[tuple[str, str]]:
    """Which of these resemble the failure, and why."""
    return [(r.past.incident, r.why) for r in resembling(SIGNATURE, CATEGORY, LINE, given, most)]


def test_the_same_signature_comes_first_then_the_newest() -> None:
    """A similar message of the category follows; others are not there."""
    alike = "RuntimeError: shape '[2, 2, 2]' is invalid for an input of size 9 at train.py"
    assert names(
        past("alike", 9.0, category=CATEGORY, signature=f"{CATEGORY}: x", line=alike),
        past("old", 1.0, category=CATEGORY, signature=SIGNATURE),
        past("new", 5.0, category=CATEGORY, signature=SIGNATURE),
        past("other kind", 9.0, category="key", signature="key: x", line=alike),
        past("other words", 9.0, category=CATEGORY, signature=f"{CATEGORY}: y", line="RuntimeError: mat1 and mat2"),
    ) == [("new", SAME), ("old", SAME), ("alike", ALIKE)]


def test_an_incident_without_a_cause_is_found_by_its_text() -> None:
    """Other numbers do not matter; a message that is too short says nothing."""
    text = "rank 3 on n2 ended: \"RuntimeError: shape '[9, 9]' is invalid for input of size 7\""
    assert names(past("text", text=text), past("none", text="rank 3 hangs")) == [("text", TEXT)]
    assert resembling("key: KeyError: 'x'", "key", "KeyError: 'x'", [past("a", text="KeyError: 'x'")]) == []


def test_each_once_and_not_too_many() -> None:
    """The journal's own record counts, not its folder's; what has no signature resembles nothing."""
    many = [past(f"i{n}", float(n), signature=SIGNATURE) for n in range(9)]
    assert [name for name, _ in names(*many)] == ["i8", "i7", "i6", "i5", "i4"]
    assert names(past("i", 2.0, signature=SIGNATURE), past("i", 3.0, text=LINE), most=3) == [("i", SAME)]
    assert resembling("", "unknown", "", many) == []
