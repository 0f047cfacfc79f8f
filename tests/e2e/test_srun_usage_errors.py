"""An option that srun does not know: its usage error, and nobody's death."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import Submit, spec  # type: ignore[import-not-found]

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def dev() -> Iterator[DevCluster]:
    """One for all: each job ends, and leaves nothing in Slurm."""
    made = DevCluster.up(spec(standby=0, daemon=False, nodes=2))
    yield made
    made.down()


@pytest.mark.parametrize("option", ["--nope", "--nodes=many"])
@pytest.mark.parametrize("end", ["", "2>&1 | cat; exit ${PIPESTATUS[0]}"], ids=["file", "pipe"])
def test_an_option_that_srun_refuses_is_told_and_nothing_is_restarted(
    dev: DevCluster, submit: Submit, option: str, end: str
) -> None:
    """Nothing ran: its own exit code and words, no incident, no restart, no requeue, wherever its output goes."""
    job = submit(dev, nodes=1, options=option, arguments=end)
    ended = job.ends(120)
    assert (ended.state, ended.exit_code, ended.restart_count) == ("FAILED", "255:0", 0), job.everything()
    (told,) = job.told("refused")
    assert option.removeprefix("--nodes=") in told["text"], job.everything()
    for kind in ("suspected", "verdict", "decided", "relaunched", "claimed", "stopped"):
        assert job.told(kind) == [], job.everything()
    assert not list(job.story_folder.glob("*/incident.json"))


def test_a_program_that_ends_with_sruns_code_is_no_usage_error(dev: DevCluster, submit: Submit) -> None:
    """255 of the program's own: srun takes its options, so the program has failed."""
    job = submit(dev, nodes=1, command="srobust run sh -c 'exit 255' #")
    job.hears("suspected", 90)
    assert job.told("refused") == []
    job.cluster.run(["scancel", job.id])
