"""What the daemon makes of a check that it has submitted, from what Slurm shows of its job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_robust.daemon.controllers.nodes.full_check import result_of
from slurm_robust.slurm.client import Job, JobRef

WAITS = Job(JobRef(7), "PENDING", "root", 0, "main", name="srobust-recheck-n2", reason="Resources")


@pytest.mark.parametrize("reason", ["BeginTime", "launch_failed_requeued_held"])
def test_a_check_that_its_node_has_sent_back_cannot_tell_and_is_cancelled(reason: str) -> None:
    """The prolog refused it, or the node was lost: Slurm requeues the job, with or without a hold."""
    result = result_of(replace(WAITS, restart_count=1, reason=reason), 7, 1.0, 600.0)
    assert result is not None
    assert (result.state, result.cancel) == ("unknown", True)
    assert reason in result.detail


@pytest.mark.parametrize(
    ("comment", "own_command", "state"),
    [
        ("srobust-check: unfit: XID 79", True, "failed"),
        ("srobust-check: unfit: XID 79", False, "failed"),
        ("", True, "unknown"),  # Python's own exit code: the package is not there
        ("", False, "failed"),  # a site's command has no words
        ("srobust-check: fit: all is well", True, "unknown"),
    ],
)
def test_exit_code_1_fails_a_node_only_with_our_commands_own_words(comment: str, own_command: bool, state: str) -> None:
    """Nodes without the package drained themselves one after the other."""
    ended = replace(WAITS, state="FAILED", exit_code="1:0", comment=comment)
    result = result_of(ended, 7, 1.0, 600.0, own_command=own_command)
    assert result is not None
    assert result.state == state


def test_a_check_is_waited_for_while_it_waits_for_its_node_and_while_it_runs() -> None:
    """Also where Slurm has started it once more before anybody looked."""
    assert result_of(WAITS, 7, 1.0, 600.0) is None
    assert result_of(replace(WAITS, state="RUNNING", restart_count=1), 7, 1.0, 600.0) is None
