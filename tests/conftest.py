"""Fixtures that many tests share."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest
from helpers import slurm_required, slurm_words
from hypothesis import HealthCheck, settings

from slurm_robust.devcluster import machine
from slurm_robust.devcluster.cluster import DevCluster, Spec

# A shell that starts the run in the background has it ignore Ctrl-C, and whatever a test starts would inherit that.
for _key in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_key) is signal.SIG_IGN:
        signal.signal(_key, signal.default_int_handler if _key is signal.SIGINT else signal.SIG_DFL)

# Thousands of Pythons start: each would compile the package anew, and each worker all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Machines are shared: how long an example took says nothing of it.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fuzz", settings.get_profile("shared"), max_examples=2000)
settings.load_profile("shared")


LONG_TESTS = frozenset(
    Path(__file__).parent.parent / line
    for line in Path(__file__).with_name("long_tests.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `slurm` or `e2e` need Slurm: they are skipped without it, or fail where it is required."""
    if (item.get_closest_marker("slurm") or item.get_closest_marker("e2e")) and not machine.installed():
        message = "Slurm is not installed: apt-get install slurmctld slurmd slurm-client munge (scripts/test does)"
        if slurm_required():
            pytest.fail(message, pytrace=False)
        pytest.skip(message)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what waits longest, and spread the end-to-end stories among the modules of the other tests.

    Stories start many ranks. Where all that run at the same time are stories, slurmds miss their deadlines; where none
    is, the machine waits.
    """
    for item in items:
        if item.path in LONG_TESTS:
            item.add_marker("long")
    first = [item for item in items if item.get_closest_marker("begin_early")]
    rest = [item for item in items if item not in first]
    stories = [[item] for item in rest if item.get_closest_marker("e2e")]
    others = [item for item in rest if not item.get_closest_marker("e2e")]
    modules = [list(tests) for _, tests in groupby(others, key=lambda item: item.path)]
    placed = [(number / len(blocks), block) for blocks in (modules, stories) for number, block in enumerate(blocks)]
    items[:] = first + [item for _, block in sorted(placed, key=itemgetter(0)) for item in block]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test on a devcluster shows what Slurm knows of it: by the time that somebody looks, it is gone."""
    report = yield
    if report.when == "call" and report.failed:
        for value in getattr(item, "funcargs", {}).values():
            cluster = getattr(value, "cluster", value)
            if isinstance(cluster, DevCluster):
                report.sections.append(("Slurm", slurm_words(cluster)))
                break
    return report


@pytest.fixture(scope="session")
def devcluster_factory() -> Iterator[Callable[[Spec], DevCluster]]:
    """Brings up devclusters; whatever the tests do, each is down at the end of the session."""
    with contextlib.ExitStack() as stack:

        def bring_up(spec: Spec) -> DevCluster:
            cluster = DevCluster.up(spec)
            stack.callback(cluster.down)
            return cluster

        yield bring_up


@pytest.fixture(scope="module")
def devcluster() -> Iterator[DevCluster]:
    """A devcluster of four nodes for one test module, without srobustd."""
    cluster = DevCluster.up(Spec(nodes=4))
    yield cluster
    cluster.down()
