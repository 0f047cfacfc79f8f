"""Which GPUs a rank was given, by its environment."""

from __future__ import annotations

import pytest

from slurm_robust.supervise.agent.ranks import gpus_of


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ({"SLURM_JOB_GPUS": "0,2"}, (0, 2)),
        ({"SLURM_JOB_GPUS": "0-2,5"}, (0, 1, 2, 5)),
        ({"SLURM_STEP_GPUS": "1", "SLURM_JOB_GPUS": "0,1"}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "3"}, (3,)),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"}, None),
        ({"SLURM_JOB_GPUS": "0-999999999999"}, None),
        ({"SLURM_JOB_GPUS": "0-99999"}, tuple(range(64))),
        ({}, None),
    ],
)
def test_numbers_ranges_and_none(environment: dict[str, str], gpus: tuple[int, ...] | None) -> None:
    """None if it does not say: then every GPU of the node may be the job's."""
    assert gpus_of(environment) == gpus
