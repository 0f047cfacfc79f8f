"""Options come in groups; the keywords of before work for one version, with a warning."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.checkpoint import BackupOptions, Checkpointer, CopyOptions, TierOptions
from slurm_robust.checkpoint.saving.shared.options import grouped


@pytest.mark.parametrize(
    ("keyword", "value", "group", "field"),
    [
        ("overlap", "skip", 0, "overlap"),
        ("until_update", True, 0, "until_update"),
        ("rng", False, 0, "rng"),
        ("layout", {"tp": 2}, 1, "layout"),
        ("backup_bytes_per_s", 5.0, 1, "bytes_per_s"),
        ("local", "/local", 2, "local"),
        ("keep_local", 7, 2, "keep_local"),
        ("every", {"shared": 9}, 2, "every"),
    ],
)
def test_a_deprecated_keyword_sets_the_option_and_warns(keyword: str, value: Any, group: int, field: str) -> None:
    """Each keyword of before has one place in the groups."""
    with pytest.warns(
        DeprecationWarning, match=rf"Checkpointer\({keyword}=...\) is deprecated: use \w+\({field}=...\)"
    ):
        found = grouped((None, None, None), {keyword: value})
    assert getattr(found[group], field) == value


def test_the_checkpointer_takes_both_alike(tmp_path: Path) -> None:
    """The warning names the caller's line; what is set is the same either way."""
    with pytest.warns(DeprecationWarning, match="is deprecated") as warned:
        before = Checkpointer(tmp_path, overlap="skip", rng=False, backups=1, every={"shared": 4})
    assert {Path(one.filename).name for one in warned} == {"test_options_deprecated.py"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        now = Checkpointer(
            tmp_path,
            copying=CopyOptions(overlap="skip", rng=False),
            backups=BackupOptions(copies=1),
            tiers=TierOptions(every={"shared": 4}),
        )
    for saver in (before, now):
        assert (saver.overlap, saver.rng, saver._setup.backups) == ("skip", False, BackupOptions(copies=1))
        assert [saver._schedule.due(step) for step in (1, 4)] == [("memory",), ("memory", "shared")]


def test_an_unknown_keyword_or_value_is_refused(tmp_path: Path) -> None:
    """As Python itself would."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'evry'"):
        Checkpointer(tmp_path, evry={})
    with pytest.raises(ValueError, match="say 'wait' or 'skip'"):
        CopyOptions(overlap="never")  # type: ignore[arg-type]
