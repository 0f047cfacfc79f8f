"""A node that refuses the daemon's own check, because of something that a person then mends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Submit  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.variant, pytest.mark.timeout(300)]
PROLOG = """#!/bin/sh
[ -e {bad}-$SLURMD_NODENAME ] || exit 0
sleep 1  # as long as checks take
scontrol update NodeName=$SLURMD_NODENAME State=DRAIN "Reason=srobust: filesystem: /home is full [job $SLURM_JOB_ID]"
exit 1
"""
SLURMD_WAITS_S = 40.0
"""For half a minute slurmd 22.05 waits for the prolog of a job that it has refused, and that may not be requeued."""


def test_a_node_that_refused_its_check_stays_in_service_once_it_is_mended(
    cluster: Callable[..., DevCluster], submit: Submit, tmp_path: Path
) -> None:
    """Its disk is full, so that its prolog refuses the check; a person makes room and resumes it."""
    bad, prolog = tmp_path / "bad", tmp_path / "prolog"
    prolog.write_text(PROLOG.format(bad=bad))
    prolog.chmod(0o755)
    dev = cluster(slurm_conf_extra=f"Prolog={prolog}")
    job = submit(dev, fault={"kind": "dead_mount", "rank": 1, "step": 30})
    name = job.hears("suspect", 90)["node"]
    full = Path(f"{bad}-{name}")
    full.touch()
    wait_until(lambda: "is full" in job.node(name).reason, 60, "the refusal of the check")
    wait_until(lambda: not job.reservations("srobust-quarantine"), 60, "the end of the quarantine")
    full.unlink()
    dev.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"])
    until_s = time.monotonic() + SLURMD_WAITS_S
    while time.monotonic() < until_s:
        assert not job.node(name).drained, job.node(name)
        time.sleep(0.5)
