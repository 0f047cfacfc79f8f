"""The site's configuration."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust import config
from slurm_robust.model import Mode


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
