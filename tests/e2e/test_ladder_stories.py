"""Nothing names a node: the nodes are tested, the code is taken back or replayed, and training goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from broken_network import BrokenNetwork
from conftest import EXAMPLES, SMALL, Submit, Training  # type: ignore[import-not-found]
from fault_library import compiled
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(400)]
Cluster = Callable[..., DevCluster]
HERE = Path(__file__).parent
LADDER = {"ladder": {"tests": ["in-node", "pairs", "alignment"]}}


def command(program: str, *words: str, options: str = "", variables: Mapping[str, str] | None = None) -> str:
    """A script that runs one of the programs here under `srobust run`; its tests see the variables, too."""
    exports = "".join(f"export {name}='{value}'\n" for name, value in (variables or {}).items())
    run = "srobust run --robust-checkpoint-dir=ck --robust-hang-timeout=6"
    return f"{exports}{run} {options} {sys.executable} {HERE / program} ck {' '.join(words)} #"


def out_of(job: Training, before: tuple[str, ...]) -> set[str]:
    """Nodes that the job has left."""
    return set(before) - set(job.job().nodes)


def test_a_corrupting_link_is_found_by_the_pairs_and_training_goes_on_without_it(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    """All ranks wait in collectives. Both ends of the link pass with others: one is left out, none is called broken."""
    network = BrokenNetwork(tmp_path / "network", {"n2,n3": "corrupt"})
    variables = {**network.variables, "BREAK_FILE": str(network.begin_file)}
    job = submit(cluster(yaml=LADDER), nodes=4, command=command("packed_training.py", "40", variables=variables))
    job.hears("training")
    before = job.job().nodes
    job.hears("resumed", 200)
    assert len(out_of(job, before)) == 1, job.everything()
    assert out_of(job, before) < {"n2", "n3"}, job.everything()
    job.ends(120)
    assert "finished" in job.output(), job.everything()


@pytest.mark.variant
def test_a_nan_from_one_wrong_bit_is_found_by_the_alignment_and_training_goes_back(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    """The training goes on with NaN. The alignment names the node whose products are wrong, and nobody else."""
    begin = tmp_path / "begin"
    variables = {
        "LD_PRELOAD": str(compiled(tmp_path, "one_bit")),
        "ONE_BIT_BIT": "30",
        "ONE_BIT_FILE": str(begin),
        "ONE_BIT_NODE": "n2",
    }
    exports = "".join(f"export {name}='{value}'\n" for name, value in variables.items())
    train = f"{sys.executable} {EXAMPLES / 'train.py'} --checkpoint-dir ck --steps 400 --step-time-s 0.03 {SMALL}"
    run = f"{exports}srobust run --robust-checkpoint-dir=ck {train} --checkpoint-every 20 #"
    job = submit(cluster(yaml=LADDER), nodes=3, command=run)
    wait_until(lambda: "step 150/" in job.output(), 90, "step 150")
    before = job.job().nodes
    begin.touch()
    assert "alignment" in job.hears("tested", 200)["text"], job.everything()
    assert job.told("tested")[0]["failed"] == ["n2"], job.everything()
    job.hears("resumed", 200)
    assert out_of(job, before) == {"n2"}, job.everything()
    job.ends(120)
    last = job.output().strip().splitlines()
    assert "finished" in job.output(), job.everything()
    assert not any("loss=nan" in line for line in last[-20:]), job.everything()


@pytest.mark.variant
def test_a_cuda_error_that_no_test_reproduces_is_tried_again_on_the_same_nodes(
    cluster: Cluster, submit: Submit
) -> None:
    """All tests pass: one attempt more, and it trains. Nobody is left out."""
    fault = {"kind": "cuda_error", "rank": 1, "step": 12}
    job = submit(cluster(yaml=LADDER), nodes=3, steps=40, fault=fault)
    job.hears("training")
    before = job.job().nodes
    job.hears("resumed", 200)
    assert job.job().nodes == before, job.everything()
    assert job.job().restart_count == 0, job.everything()
    assert len(job.told("tested")) >= 1, job.everything()
    job.ends(120)
    assert all(not job.node(name).reason for name in before)


@pytest.mark.variant
def test_the_papers_example_ends_with_the_one_bad_machine_out(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    """TP 2, PP 4, DP 4 on 16 machines: the stacks show the group of the machine, its tests name the machine itself."""
    network = BrokenNetwork(tmp_path / "network", {"n16": "drop"})
    variables = {**network.variables, "BREAK_FILE": str(network.begin_file)}
    dev = cluster(nodes=17, gpus_per_node=2, yaml=LADDER)
    options = "--robust-layout=tp=2,pp=4,dp=4,order=tp-pp-dp"
    program = command("parallel_training.py", "12", "2", "4", options=options, variables=variables)
    job = submit(dev, nodes=16, command=program, sbatch=("--ntasks-per-node=2",))
    job.hears("resumed", 360)
    assert set(job.job().nodes) == {f"n{n}" for n in range(1, 18)} - {"n16"}, job.everything()
    job.ends(180)
    assert "finished" in job.output(), job.everything()


@pytest.mark.variant
def test_a_fault_that_only_the_own_program_shows_is_found_by_replay(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    """One node computes wrong in this program alone. Every test passes, and so does nobody's second attempt."""
    variables = {"WRONG_NODE": "n3"}
    options = "--robust-replay=same"
    program = command("packed_training.py", "40", options=options, variables=variables)
    job = submit(cluster(yaml=LADDER), nodes=4, command=program)
    job.hears("training")
    before = job.job().nodes
    # The same again makes a new step before it hangs as well.
    assert "a replay" in job.hears("decided", 200, 2)["text"], job.everything()
    assert "n3" in job.hears("decided", 200, 4)["evict"], job.everything()
    ended = job.ends(120)
    assert set(before) - set(ended.nodes) == {"n3"}, job.everything()
    assert "finished" in job.output(), job.everything()
