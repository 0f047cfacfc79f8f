"""The command line and the variables of a group's step."""

from __future__ import annotations

from slurm_robust.stoptime.replay_groups import ReplayGroup
from slurm_robust.stoptime.replay_run import (
    ReplayPlace,
    ReplaySpec,
    argv,
    by_option,
    kept_options,
    step_environment,
    typed_command,
    variables,
)

GROUP = ReplayGroup(2, 3, ("n3",), ("n1",))
PLACE = ReplayPlace("12", {"n1": "host1", "n2": "host2", "n3": "host3"}, 8, "/env/bin/python")


def test_a_users_command_runs_on_the_nodes_of_its_group() -> None:
    """With its number of ranks; env gives the variables, whatever srun exports."""
    words = argv(GROUP, ReplaySpec(2, 1, typed_command("torchrun x.py")), PLACE, 20001, 60.0)
    assert {"--overlap", "--jobid=12", "--nodelist=n3,n1", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"} <= {*words}
    assert words[-3:] == ["/bin/sh", "-c", "torchrun x.py"]
    assert "SROBUST_REPLAY=1" in words[words.index("--") :]


def test_a_rank_knows_that_it_replays_and_finds_its_master() -> None:
    """Rank 0 is on the first node in Slurm's order. No checkpoint folder is named, and no supervisor attaches."""
    found = variables(GROUP, ReplaySpec(2), PLACE, 20001, 8)
    assert (found["MASTER_ADDR"], found["MASTER_PORT"], found["WORLD_SIZE"]) == ("host1", "20001", "16")
    assert (found["SROBUST_REPLAY"], found["SROBUST_REPLAY_PHASE"], found["SROBUST_REPLAY_GROUP"]) == ("1", "2", "3")
    assert (found["SROBUST_CHECKPOINT_DIR"], found["SROBUST_MODE"]) == ("", "off")


def test_the_reference_model_has_a_rank_on_each_gpu() -> None:
    """Tensor groups of a node, or of the size that is given where it divides the ranks."""
    assert argv(GROUP, ReplaySpec(2), PLACE, 20001, 60.0)[-2:] == ["8", "60"]
    assert "--ntasks=16" in argv(GROUP, ReplaySpec(2), PLACE, 20001, 60.0)
    assert argv(GROUP, ReplaySpec(2, tensor=4), PLACE, 20001, 60.0)[-2] == "4"
    assert argv(GROUP, ReplaySpec(2, tensor=5), PLACE, 20001, 60.0)[-2] == "8"


def test_the_jobs_own_options_stay_but_for_size_place_and_files() -> None:
    """The training's log must not be overwritten, and 64 GPUs are not asked for two nodes."""
    typed = "-N8 --ntasks 64 --gpus=64 -o train.log --mpi=pmix --cpus-per-task=4 -G 64 --container-image=x -K1 --pty"
    assert kept_options(typed.split()) == ["--mpi=pmix", "--cpus-per-task=4", "--container-image=x"]
    typed = "-W 60 --wait 30 --ntasks-per-gpu=1 -m arbitrary --het-group=0 --bcast=/local/train -E --container-save=/i"
    assert kept_options([*typed.split(), "--exact"]) == ["--exact"]
    words = argv(GROUP, ReplaySpec(2, 8, ("train",), srun_options=("-N8", "--mpi=pmix")), PLACE, 20001, 60.0)
    assert words[1] == "--mpi=pmix"
    assert "--mem=0" not in words


def test_what_the_option_asks_for() -> None:
    """The job's own command, another one under the same options of srun, or the reference model under none."""
    own = ReplaySpec(2, 8, ("python", "train.py"), srun_options=("--mpi=pmix",), environment={"SLURM_JOB_ID": "5"})
    assert by_option("same", own) == own
    assert by_option("./short.sh", own).command == ("/bin/sh", "-c", "./short.sh")
    assert by_option("./short.sh", own).srun_options == ("--mpi=pmix",)
    listed = ReplaySpec(2, 8, ("programs.conf",), srun_options=("--multi-prog", "--mpi=pmix"))
    assert by_option("./short.sh", listed).srun_options == ("--mpi=pmix",)
    assert by_option("", own) == ReplaySpec(2, environment={"SROBUST_WATCH": "1"})


def test_the_step_has_not_the_size_of_the_job() -> None:
    """Variables of sbatch's options count for srun."""
    base = {"SLURM_GPUS": "64", "SLURM_NTASKS": "64", "NCCL_DEBUG": "INFO", "SROBUST_MODE": "on"}
    assert step_environment(base) == {"NCCL_DEBUG": "INFO", "SROBUST_MODE": "off"}
