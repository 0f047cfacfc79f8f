"""The board and the alert rules of examples/monitoring: valid, and about metrics that are really there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from promtool import promtool

from slurm_robust.daemon.api.metrics import METRICS
from slurm_robust.daemon.counted import ANNOUNCED
from slurm_robust.policy.cluster.node_states import NodeState

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "monitoring"
SCRAPED = {"instance", "le", "alertname"}
"""Labels that Prometheus adds, or that a histogram has."""
NAME = re.compile(r"\b(srobust_[a-z_]+)(\{[^}]*\})?")


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of every panel, variable, annotation, rule and series."""
    board = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield f"board: {panel['title']}", target["expr"]
    for one in board["annotations"]["list"]:
        yield f"board: {one['name']}", one["expr"]
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    for rule in rules["groups"][0]["rules"]:
        yield rule["alert"], rule["expr"]
    for story in yaml.safe_load((FOLDER / "alerts.test.yml").read_text())["tests"]:
        for series in story["input_series"]:
            yield f"series of {story['name']}", series["series"]


EXPRESSIONS = list(expressions())


def described(name: str) -> tuple[str, ...]:
    """The labels of a metric as it stands in an expression."""
    for ending in ("", "_bucket", "_sum", "_count"):
        known = METRICS.get(name.removeprefix("srobust_").removesuffix(ending) if ending else name[8:])
        if known is not None and bool(ending) == (known.kind == "histogram"):
            return known.labels
    raise AssertionError(f"there is no metric {name}")


@pytest.mark.parametrize(("where", "text"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_every_metric_and_label_exists(where: str, text: str) -> None:
    """A panel without data, or an alert that never fires, is found here. Old names are not used."""
    names = NAME.findall(text)
    assert names
    for name, matchers in names:
        labels = {*described(name), *SCRAPED}
        assert "Deprecated" not in METRICS.get(name[8:], METRICS["info"]).meaning, name
        for label, value in re.findall(r'([a-z_]+)=~?"([^"]*)"', matchers):
            assert label in labels, f"{name} has no label {label}"
            if label in VALUES and "$" not in value:
                assert set(value.split("|")) <= VALUES[label], value
    every = {label for name, _ in names for label in described(name)} | SCRAPED
    for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", text):
        assert set(group.replace(" ", "").split(",")) <= every, group


def our_events() -> set[str]:
    """First words of the audit log, as the code writes them."""
    text = "".join(path.read_text("utf-8") for path in (ROOT / "slurm_robust" / "daemon").rglob("*.py"))
    return set(re.findall(r'"([a-z_]+\.[a-z_]+)"', text))


VALUES = {
    "event": our_events(),
    "outcome": {"stopped", "aborted", "not_started", "resumed"},
    "state": {state.value for state in NodeState} | {"open", "running"},
    "window": {"run", "hour"},
}


def test_events_that_are_shown_from_the_beginning_exist() -> None:
    """And those that alerts count are among them: an increase from nothing is not seen."""
    assert set(ANNOUNCED) <= our_events()
    counted = {e for w, t in EXPRESSIONS if w.startswith("Srobust") for e in re.findall(r'event=~"([^"]*)"', t)}
    assert {event for events in counted for event in events.split("|")} <= set(ANNOUNCED)


def test_legends_name_labels_that_are_left() -> None:
    """`{{road}}` in a legend is a label of the metric that the expression keeps."""
    board = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            every = {label for name, _ in NAME.findall(target["expr"]) for label in described(name)}
            groups = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            kept = set(groups[0].replace(" ", "").split(",")) if groups else every
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, panel["title"]


def test_the_board_is_whole() -> None:
    """Numbers of panels are unique, nothing overlaps, each says what it shows, and the data source is a variable."""
    board: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["datasource"]["uid"] == "${datasource}"
    assert [v["name"] for v in board["templating"]["list"]] == ["datasource", "instance", "window"]


def test_rules_are_valid_and_fire_when_they_should() -> None:
    """Prometheus' own judgement, and series for each alert: when it fires, and when it does not."""
    promtool("check", "rules", "alerts.yml", cwd=FOLDER)
    promtool("test", "rules", "alerts.test.yml", cwd=FOLDER)
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    text = (FOLDER / "alerts.test.yml").read_text()
    for rule in rules:
        assert f'alertname="{rule["alert"]}"' in text, f"no series makes {rule['alert']} fire"
        assert {"summary", "description", "command"} == set(rule["annotations"])
        assert rule["labels"]["severity"] in ("critical", "warning")
