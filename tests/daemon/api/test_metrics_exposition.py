"""Metrics by Prometheus' conventions, documented, and without texts from outside in their labels."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from daemon_scene import Scene
from daemon_world import World
from fake_slurm import FakeSlurm
from helpers import wait_until
from prometheus_client.parser import text_string_to_metric_families
from promtool import promtool
from snapshots import published

from slurm_robust.config.site import parse
from slurm_robust.daemon.api.metrics import MAX_JOBS, METRICS, metrics, table

ROOT = Path(__file__).resolve().parents[3]


def labels_of(text: str) -> dict[str, set[str]]:
    """Metric (without `srobust_`) → the names of its labels, where it has samples."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        for sample in family.samples:
            found.setdefault(name.removeprefix("srobust_"), set()).update(set(sample.labels) - {"le"})
    return found


def check(text: str) -> None:
    """Prometheus is content, and names, kinds and labels are those of the table."""
    promtool("check", "metrics", text=text)
    kinds = dict(re.findall(r"^# TYPE srobust_(\w+) (\w+)$", text, re.MULTILINE))
    assert kinds == {name: described.kind for name, described in METRICS.items()}
    for name, labels in labels_of(text).items():
        assert labels == set(METRICS[name].labels), name


def test_the_documents_have_the_table() -> None:
    """Made by the program that has it."""
    assert table() in (ROOT / "docs" / "insight.md").read_text()


def job(number: int, **more: object) -> dict[str, object]:
    """A row of the snapshot."""
    return {"job": str(number), "user": "ann", "node_count": 3, "ettr": 0.5, "ettr_hour": 0.25} | more


def test_ettr_of_all_jobs_and_of_each() -> None:
    """Weighted by nodes; a job that does not tell it does not count; names only where the site says so, 500 at most."""
    value = {"jobs": [job(1), job(2, node_count=1, ettr=0.9, ettr_hour=None), job(3, ettr=None, ettr_hour=None)]}
    text = metrics(value, 1.0).decode()
    assert f'srobust_ettr_ratio{{window="run"}} {(3 * 0.5 + 0.9) / 4}' in text
    assert 'srobust_ettr_ratio{window="hour"} 0.25' in text
    assert 'srobust_ettr_lowest_ratio{window="run"} 0.5' in text
    assert "ann" not in text
    text = metrics({**value, "job_labels": True}, 1.0).decode()
    assert 'srobust_job_ettr_ratio{slurm_job="2",user="ann",window="run"} 0.9' in text
    many = {"jobs": [job(number) for number in range(2 * MAX_JOBS)], "job_labels": True}
    assert metrics(many, 1.0).decode().count('window="run"') == MAX_JOBS + 2


def test_a_hostile_name_stays_a_label() -> None:
    """Quotes, line ends and half a character pair end no line and no page."""
    value = {"jobs": [job(1, user='a"} 1\nsrobust_acting 7\n\\')], "job_labels": True, "standby": [{"name": 'p"\n'}]}
    text = metrics(value, 1.0).decode()
    assert "srobust_acting 0.0" in text
    assert "\nsrobust_acting 7" not in text
    promtool("check", "metrics", text=text)


def test_a_simulated_recovery(tmp_path: Path) -> None:
    """Every kind of metric has a sample: histograms, counters, gauges, and those of other parts."""
    world = World(tmp_path, FakeSlurm(), parse("standby: {size: 1}"))
    world.slurm.run_job(("n1", "n2", "n3"))
    world.run(6)
    world.claim(1, ("n2",), times={"suspected": world.slurm.now_s - 10})
    for _ in range(20):
        world.run(1)
        world.daemon.totals.tick()
    world.claim(1, (), state="watching", times={"first_new_step": world.slurm.now_s}, step=30)
    for _ in range(10):
        world.run(1)
        world.daemon.totals.tick()
    value = published(world.daemon)
    value["jobs"] = [job(1)]
    value |= {"job_labels": True, "notify": [{"target": "t", "sent": 1, "waiting": 2}]}
    text = metrics(value, value["at_s"] + 3).decode()
    check(text)
    assert set(METRICS) - set(labels_of(text)) <= {"checks_total"}
    assert 'srobust_recovery_seconds_count{road="seat"} 1.0' in text
    assert "srobust_snapshot_age_seconds 3.0" in text
    world.journal.close()


def get_text(url: str) -> str:
    """A page; nothing while nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            text: str = answer.read().decode()
            return text
    except (urllib.error.URLError, ConnectionError):
        return ""


@pytest.mark.slurm
def test_a_real_daemon(scene: Scene) -> None:
    """What a scrape of a daemon gets, on a real Slurm: the same names, kinds and labels."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    scene.start(daemon={"http": {"enabled": True, "port": port}, "idle_interval_s": 0.25})
    page = f"http://127.0.0.1:{port}/metrics"
    wait_until(lambda: 'srobust_nodes{room="idle",state="idle"} 4.0' in get_text(page), 20, "the nodes' metrics")
    text = get_text(page)
    check(text)
    assert 'srobust_events_total{event="daemon.start"} 1.0' in text
