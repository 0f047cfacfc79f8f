"""All processes of a node are gone, and its slurmd is back before Slurm notices: srun waits for its task for ever."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Submit, Training  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.variant, pytest.mark.timeout(240)]
Cluster = Callable[..., DevCluster]
PAIR = Path(__file__).with_name("quiet_pair.py")


def lose_a_rank(cluster: Cluster, submit: Submit, plugstack: Path, *, plain: bool, words: str = "") -> Training:
    """A pair that has made thirty steps; then all that runs on its second node is killed, and slurmd started again."""
    dev = cluster(slurm_conf_extra=f"PlugStackConfig={plugstack}", slurmd_timeout_s=30, nodes=2, standby=0)
    pair = f'{sys.executable} {PAIR} "$PWD" 80 {words} || echo "srun gave $?" #'
    sbatch = ("--robust",) if plain else ()
    job = submit(dev, nodes=2, command=f"{'srun' if plain else 'srobust run'} {pair}", sbatch=sbatch)
    wait_until(lambda: "step 30/" in job.output(), 60, "30 steps")
    node = job.job().nodes[1]
    dev.kill_slurmd(node)
    dev.start_slurmd(node)
    return job


@pytest.mark.parametrize("plain", [True, False])
def test_a_rank_that_vanished_is_not_waited_for_for_ever(
    cluster: Cluster, submit: Submit, plugstack: Path, plain: bool
) -> None:
    """The other rank then ends with a bare exit code 1, as a program might on purpose: it only followed.

    The job is not left to its srun, which waits for the end of a task that nobody will report: it goes on training.
    """
    job = lose_a_rank(cluster, submit, plugstack, plain=plain)
    assert "rank 0 on n1 died first" not in job.hears("verdict", 90)["text"]
    job.hears("resumed", 60)
    assert job.told("stopped") == []
    assert job.ends(60).state == "COMPLETED", job.everything()


def test_a_training_that_is_stopped_has_really_ended(cluster: Cluster, submit: Submit, plugstack: Path) -> None:
    """The other rank then raises an error of the program's own: srun does not wait on, and the script's next line runs.

    Not before that is it told that nothing is started again.
    """
    job = lose_a_rank(cluster, submit, plugstack, plain=True, words='"3 is no step"')
    job.hears("stopped", 100)
    wait_until(lambda: "srun gave" in job.output(), 2, "the script's next line")
    assert job.ends(60).restart_count == 0, job.everything()
