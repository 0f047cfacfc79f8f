"""The site's configuration."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config import site as config
from slurm_robust.core.model import Mode


def test_nothing_configured_observes() -> None:
    """A fresh install changes nothing."""
    assert config.parse("").mode is Mode.OBSERVE


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("mode: act\nsupervise:\n  tick_s: 1\n  tick: 3\n", 4, "supervise.tick"),
        ("mode: act\nsupervise:\n  tick_s: -1\n", 3, "supervise.tick_s"),
        ("mode: maybe\n", 1, "mode"),
        ("\n\nstandbye:\n  size: 1\n", 3, "standbye"),
        ("daemon:\n  http:\n    port: 99999\n", 3, "daemon.http.port"),
        ("seat: 5\n", 1, "seat"),
        ("report:\n  job_types:\n    a: '['\n", 1, "report"),
        ("report:\n  job_types:\n    a: 'x{99999999999}'\n", 1, "report"),
    ],
)
def test_a_mistake_is_told_with_file_line_and_key(text: str, line: int, key: str) -> None:
    """What to open, where to look, and what is wrong there."""
    with pytest.raises(config.ConfigError) as error:
        config.parse(text, "/etc/slurm_robust/robust.yaml")
    assert str(error.value).startswith(f"/etc/slurm_robust/robust.yaml:{line}: {key}: ")


@pytest.mark.parametrize("text", ["a: [1\n", "\t- x: {", "mode: act\n mode: b\n", "- just\n- a list\n", "42"])
def test_what_is_no_table_is_told(text: str) -> None:
    """Broken YAML and other shapes."""
    with pytest.raises(config.ConfigError, match=r"^robust.yaml"):
        config.parse(text)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_a_typed_error(text: str) -> None:
    """Never another exception."""
    with contextlib.suppress(config.ConfigError):
        config.parse(text)


def test_a_section_without_keys_is_its_defaults() -> None:
    """Whoever comments out every key of a section leaves null there."""
    assert config.parse("nodecheck:\n  # disable: [clock]\ndaemon:\n  http:\nstandby: {size: 1}\n").standby.size == 1
    with pytest.raises(config.ConfigError, match=r"standby\.size"):
        config.parse("standby: {size: }\n")


def test_the_file_is_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An explicit path, then the variable; a file that was named and is not there is an error."""
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("mode: act\n")
    two.write_text("standby: {size: 3}\n")
    monkeypatch.setenv("SROBUST_CONFIG", str(two))
    assert config.load().standby.size == 3
    assert config.load(one).mode is Mode.ACT
    with pytest.raises(config.ConfigError, match="cannot be read"):
        config.load(tmp_path / "three.yaml")


VALUES = {"without_daemon": "drain"}


@pytest.mark.parametrize(("old", "new"), config.RENAMED.items())
def test_an_old_key_is_read_and_named_with_its_new_one(old: str, new: str, tmp_path: Path) -> None:
    """It sets the new one, and a warning names both; the error for a wrong value has the name in the file."""
    (section, old_key), new_key = old.split("."), new.split(".")[1]
    value = VALUES.get(new_key, "7.5")
    path = tmp_path / "robust.yaml"
    path.write_text(f"{section}:\n  {old_key}: {value}\n")
    assert str(getattr(getattr(config.load(path), section), new_key)) == value
    (sentence,) = config.old_keys(path)
    assert str(path) in sentence
    assert old in sentence
    assert new in sentence
    path.write_text(f"{section}:\n  {new_key}: {value}\n")
    assert config.old_keys(path) == ()
    with pytest.raises(config.ConfigError, match=rf"^robust.yaml:3: {re.escape(old)}: "):
        config.parse(f"{section}:\n\n  {old_key}: []\n")


@pytest.mark.parametrize(("old", "new"), config.RENAMED.items())
def test_a_key_under_both_names_is_an_error_that_names_both(old: str, new: str) -> None:
    """Nobody knows which one is meant."""
    section, old_key = old.split(".")
    value = VALUES.get(new.split(".")[1], "7.5")
    with pytest.raises(config.ConfigError, match=rf"^robust.yaml:2: {re.escape(old)}: .*{re.escape(new)}"):
        config.parse(f"{section}:\n  {old_key}: {value}\n  {new.split('.')[1]}: {value}\n")


def test_old_keys_of_a_file_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    """A warning never keeps anything from starting: what is wrong is for `load` to say."""
    for text in ("a: [1\n", "42", "nodecheck: 5\n", "nodecheck: {alone: drain, without_daemon: drain}\n"):
        (tmp_path / "robust.yaml").write_text(text)
        assert config.old_keys(tmp_path / "robust.yaml") == ()
    assert config.old_keys(tmp_path / "none.yaml") == ()
