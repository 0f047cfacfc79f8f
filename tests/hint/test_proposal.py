from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from slurm_robust.diagnose.findings import Matcher
from slurm_robust.diagnose.rulebook import read, shipped
from slurm_robust.hint.errors import HintError
from slurm_robust.hint.page import LogPage, PageLine
from slurm_robust.hint.proposal import RuleProposal, accept, proposals, propose, save
from slurm_robust.hint.vote import Hint, HintSample

LINE = PageLine(3, "flux <path> is not aligned: 7", "flux /home/ann/x is not aligned: 7")
PAGE = LogPage((LINE, *(PageLine(n, f"{kind} flux {n}", f"{kind} flux {n}") for n, kind in enumerate("abcdef", 4))))
HINT = Hint(shipped().categories["storage"], "c", LINE, 0.8, 4, 5, model="m")
GOOD = r"flux .* is not aligned: \d+"


def sample(pattern: str = GOOD, another: str = "flux b is not aligned: 12", line: PageLine | None = LINE) -> HintSample:
    """An agreeing sample with this pattern."""
    return HintSample("storage", "the flux broke", line, pattern, another)


def saved(folder: Path) -> RuleProposal:
    """A good proposal, written into the folder."""
    made = propose(HINT, [sample()], PAGE)
    save(folder, made)
    return made


def test_a_rule_is_proposed_with_lines_that_it_matches(tmp_path: Path) -> None:
    """Its file is a file of rules, without what was masked; the same again is the same file."""
    made = saved(tmp_path / "review")
    assert saved(tmp_path / "review") == made
    assert proposals(tmp_path / "review") == ([made], [])
    (path,) = (tmp_path / "review").iterdir()
    assert "ann" not in path.read_text()
    assert path.parent.stat().st_mode & 0o077 == 0
    (rule,) = [rule for rule in read([path]).rules if rule.id == made.id]
    assert Matcher(read([path])).match(LINE.original) is rule or rule.pattern == GOOD


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (sample(""), "no answer has a pattern"),
        (sample(another=""), "no answer has a pattern"),
        (sample(line=None), "no answer has a pattern"),
        (sample("flux ("), "not a regular expression"),
        (sample("(?P<x>a)(?P<x>flux)"), "not a regular expression"),
        (sample(".*"), "no word that a line must have"),
        (sample("flux|.*"), "no word that a line must have"),
        (sample(r"\d+|."), "no word that a line must have"),
        (sample("flux [<]path> is"), "does not match"),
        (sample(another="something else"), "does not match 'something else'"),
        (sample(r"flux .* is not aligned: \d+|Error"), "also matches an example of"),
        (sample("flux"), "matches 7 different lines of this log"),
        (sample(r"flux(.|\w|\s)*(.|\w|\s)*(.|\w|\s)*(.|\w|\s)*!|" + GOOD), "takes too long"),
    ],
)
def test_a_rule_that_is_not_right_is_not_proposed(wrong: HintSample, why: str) -> None:
    """Too broad, no expression, masks in it, without its line, taking other rules' lines, or for ever."""
    with pytest.raises(HintError, match=why):
        propose(HINT, [wrong], PAGE)
    assert propose(HINT, [wrong, sample()], PAGE).pattern == GOOD


def test_an_accepted_rule_stands_in_the_sites_file_behind_the_others(tmp_path: Path) -> None:
    """Comments and indentation stay; the proposal is gone; the rule is used."""
    made, site = saved(tmp_path / "review"), tmp_path / "site.yaml"
    old = (
        "# ours\nrules:\n  - id: ours   # keep\n    category: storage\n    pattern: gateway down\n    source: us\n"
        "    examples: [gateway down 1, gateway down 2]"
    )
    site.write_text(old)
    site.chmod(0o640)
    accept(tmp_path / "review", made.id, site)
    assert site.read_text().startswith(old + "\n  - id: hint-storage-")
    assert site.stat().st_mode & 0o777 == 0o640
    found = Matcher(read([site])).match(LINE.original)
    assert found is not None
    assert (found.id, found.category.name) == (made.id, "storage")
    assert proposals(tmp_path / "review") == ([], [])
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("old", [None, "rules:\n", "rules: []\n", "rules: [ ]"])
def test_the_first_rule_begins_the_file(tmp_path: Path, old: str | None) -> None:
    """Also where there is none, or an empty list."""
    made, site = saved(tmp_path), tmp_path / "etc" / "site.yaml"
    site.parent.mkdir()
    if old is not None:
        site.write_text(old)
    if old == "rules:\n":
        with pytest.raises(HintError, match="must have one key"):
            accept(tmp_path, made.id, site)
        return
    accept(tmp_path, made.id, site)
    assert [rule["id"] for rule in yaml.safe_load(site.read_text())["rules"]] == [made.id]


@pytest.mark.parametrize(
    "old",
    [
        "rules: [{id: a, category: key, pattern: abc, source: s, examples: [abc, abcd]}]\n",
        "rules:\n- {id: a, category: key, pattern: abc, source: s, examples: [abc, abcd]}\nmore: 1\n",
        "rules:\n- {id: a, category: key, pattern: abc, source: s, examples: [abc, abcd]}\n...\n",
    ],
)
def test_a_file_that_takes_no_rule_stays_as_it_is(tmp_path: Path, old: str) -> None:
    """The message has the text to add by hand."""
    made, site = saved(tmp_path / "review"), tmp_path / "site.yaml"
    site.write_text(old)
    with pytest.raises(HintError, match=r"add this there by hand:\n- id: hint-storage"):
        accept(tmp_path / "review", made.id, site)
    assert site.read_text() == old
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert proposals(tmp_path / "review")[0] == [made]


def test_what_became_wrong_is_not_accepted(tmp_path: Path) -> None:
    """A proposal that was changed, one that takes a line of the site's, an id that is taken or leads elsewhere."""
    review, site = tmp_path / "review", tmp_path / "site.yaml"
    made = saved(review)
    path = review / f"{made.id}.yaml"
    good = path.read_text()
    for change, why in ((("aligned", "alined"), "does not match"), ((made.id, "other"), "one rule, whose id")):
        path.write_text(
            good.replace(*change, 1) if change[0] != "aligned" else good.replace(r"aligned: \d", r"alined: \d")
        )
        with pytest.raises(HintError, match=why):
            accept(review, made.id, site)
    path.write_text(good)
    rule = "rules:\n- {id: %s, category: key, pattern: flux, source: s, examples: ['flux a is not aligned: 1', flux]}\n"
    for name, why in (("theirs", "also matches an example of theirs"), (made.id, "is taken")):
        site.write_text(rule % name)
        with pytest.raises(HintError, match=why):
            accept(review, made.id, site)
    for name in ("../site", "none", "", "a/b", "\0"):
        with pytest.raises(HintError, match="no proposal"):
            accept(review, name, site)


def test_a_file_that_is_no_proposal_costs_a_sentence(tmp_path: Path) -> None:
    """The others are shown."""
    made = saved(tmp_path)
    (tmp_path / "a.yaml").write_text("rules: [{}]")
    (tmp_path / "b.yaml").write_bytes(b"\xff")
    (tmp_path / "c.yaml").write_text("x" * 100_000)
    (tmp_path / "d.yaml").mkdir()
    (tmp_path / "e.yaml").write_text("!!python/object/apply:os.system [exit]")
    (tmp_path / "notes.txt").write_text("mine")
    found, problems = proposals(tmp_path)
    assert found == [made]
    assert len(problems) == 5
    assert proposals(tmp_path / "none") == ([], [])


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    """The hint is shown all the same."""
    (tmp_path / "file").write_text("")
    with pytest.raises(HintError, match="cannot be written"):
        save(tmp_path / "file" / "review", propose(HINT, [sample()], PAGE))
