"""docs/configuration.md, the examples of configuration, and every key and variable that a document names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from documents import (
    DOCUMENTS,
    IDS,
    PACKAGE,
    PARTS,
    ROOT,
    keys_of,
    section,
    spans,
    text_of,
)

from slurm_robust import checkpoint
from slurm_robust.config import site as config


def documented_keys() -> dict[str, tuple[str, str, str]]:
    """Key → (default as written, unit, meaning), from the tables."""
    rows = re.findall(
        r"^\| `([a-z0-9_.]+)` \| `([^`]*)` \|([^|]*)\| (.+) \|$", text_of("docs/configuration.md"), re.MULTILINE
    )
    assert len({key for key, *_ in rows}) == len(rows), "a key stands there twice"
    return {key: (default, unit.strip(), meaning) for key, default, unit, meaning in rows}


def test_every_configuration_key_is_documented_with_its_true_default() -> None:
    """No key is missing, none is invented, and each default is the code's, read as YAML."""
    known = dict(keys_of(config.Config))
    written = documented_keys()
    assert set(written) == set(known)
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in known.items()}
    assert {key: yaml.safe_load(default) for key, (default, _, _) in written.items()} == plain


def test_old_keys_are_documented_with_their_new_names() -> None:
    """A site that meets one in its file, or in a warning, finds both."""
    listed = re.findall(r"^\* `([a-z0-9_.]+)` is now `([a-z0-9_.]+)`$", text_of("docs/configuration.md"), re.MULTILINE)
    assert dict(listed) == config.RENAMED


def test_units_stand_where_names_tell_them() -> None:
    """A key that ends in a unit has that unit in its column."""
    units = {"_s": "s", "_min": "min", "_days": "days"}
    for key, (_, unit, meaning) in documented_keys().items():
        for ending, expected in units.items():
            if key.endswith(ending):
                assert unit == expected, key
        assert meaning.strip(), key


def test_the_words_for_a_wrong_file_are_the_true_ones() -> None:
    """The example of an error is what the program says."""
    with pytest.raises(config.ConfigError) as error:
        config.parse("seat:\n  max_active: 3\n  duration: 3\n")
    assert str(error.value) in text_of("docs/configuration.md")


def test_the_example_configuration_is_valid_and_starts_by_observing() -> None:
    """examples/robust.yaml loads, and a site that copies it changes nothing before it says so."""
    assert config.load(ROOT / "examples" / "robust.yaml").mode == "observe"


@pytest.mark.parametrize("path", DOCUMENTS, **IDS)
def test_yaml_in_documents_is_valid_configuration(path: Path) -> None:
    """Every fenced block of YAML could stand in robust.yaml."""
    for block in re.findall(r"^ *```yaml\n(.*?)^ *```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        config.parse(block, str(path))


def our_text() -> str:
    """Every file of ours that runs."""
    found = (path for part in PARTS for path in (ROOT / part).rglob("*") if "build" not in path.parts)
    files = (path for path in found if path.is_file() and path.suffix not in (".pyc", ".md"))
    return "\n".join(path.read_text("utf-8", errors="replace") for path in files)


def test_configuration_keys_that_the_documents_name_exist() -> None:
    """`supervise.action_limit_s` and its kind, wherever one stands; methods of the checkpoint package are none."""
    known = {name for key, _ in keys_of(config.Config) for name in (key, *key.rsplit(".", 1)[:1])} | {*config.RENAMED}
    sections = "|".join(sorted({key.split(".")[0] for key in known if "." in key}))
    for path in DOCUMENTS:
        for span in spans(path):
            found = re.match(rf"((?:{sections})\.[a-z0-9_.]+?)(?:\.<|: |$)", span)
            if not found or found[1] in known:
                continue
            head, _, name = found[1].partition(".")
            if name in ("md", "html"):  # report.md, a file
                continue
            method = head == "checkpoint" and hasattr(checkpoint, name.split(".")[0])
            options = found[1].startswith("nodecheck.options.")
            module = (PACKAGE / head / f"{name}.py").exists()
            assert method or options or module or (ROOT / "benchmarks" / found[1]).exists(), f"{path.name}: {found[1]}"


def test_variables_that_the_documents_name_are_read_or_set() -> None:
    """Each `SROBUST_…` stands in the code, and each that a site or user may set stands in configuration.md."""
    text = our_text()
    for path in DOCUMENTS:
        for name in set(re.findall(r"\bSROBUST_[A-Z_]*[A-Z]\b", path.read_text("utf-8"))):
            assert name in text, f"{path.name}: {name}"


def test_slurm_conf_names_scripts_that_are_there() -> None:
    """Each line is `Key=Value`, no key twice, and every script named is one of ours; checks.md has the same lines."""
    lines = [line for line in text_of("examples/slurm.conf").splitlines() if line and not line.startswith("#")]
    pairs = dict(line.split("=", 1) for line in lines)
    assert len(pairs) == len(lines)
    for value in pairs.values():
        if value.startswith("/"):
            folder, name = Path(value).parts[-2:]
            assert (ROOT / folder / name).exists(), value
    told = section("docs/checks.md", "Prolog, epilog, health check")
    for key in ("Prolog", "Epilog", "PrologFlags", "HealthCheckProgram", "SchedulerParameters"):
        assert f"{key}={pairs[key]}" in told, key
