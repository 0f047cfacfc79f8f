"""What a rank has raised before it ended, or without ending: whose is it?"""

from dataclasses import replace

import pytest
from exit_scenes import NCCL_TIMEOUT, NODES, died, raised
from localize_scenes import (
    ALL_REDUCE,
    SHUTDOWN,
    USER,
    WORKER_LOCK,
    capture,
    evidence,
    in_loader,
    process,
    rank,
    repeated,
    signal,
    waiting,
)

from slurm_robust.core.model import Conclusion, SignalKind
from slurm_robust.localize.evidence import Evidence, RaisedException, RankExit
from slurm_robust.localize.judge import judge


def at(exception: str, at_s: float = 98.0) -> dict[int, RaisedException]:
    """Rank 1 has raised this."""
    return {1: RaisedException(at_s, raised(exception))}


def test_an_error_of_a_rank_that_has_not_ended_yet_is_the_root() -> None:
    """Tearing its process group down takes longer than the others' aborts; by its label the exception is known."""
    exits = tuple(died(n, 100.0, None, 6, *NCCL_TIMEOUT) for n in (0, 2, 3))
    verdict = judge(Evidence(4, NODES, exits=exits, raised=at("TypeError: boom")))
    assert (verdict.conclusion, verdict.suspects, verdict.corroborated) == (Conclusion.USER_CODE, (), True)
    assert "rank 1 raised 'TypeError: boom'" in verdict.reason
    assert "ranks 0,2-3 only followed" in verdict.reason


def test_a_rank_that_raised_and_hangs_in_its_teardown_is_the_programs() -> None:
    """Nobody has ended. The others wait for it, which by the stacks alone would be its node's fault."""
    hung = repeated(waiting(0), rank(1, process(SHUTDOWN)), waiting(2), waiting(3))
    verdict = judge(replace(hung, raised=at("TypeError: boom")))
    assert (verdict.conclusion, verdict.corroborated) == (Conclusion.USER_CODE, True)


@pytest.mark.parametrize("exception", ["TypeError: boom", "RuntimeError: CUDA error: unspecified launch failure"])
def test_a_rank_that_raised_and_still_stands_in_its_program_has_not_ended(exception: str) -> None:
    """Some handler printed the exception and went on: what the stacks say counts, as if nothing had been printed."""
    hung = repeated(waiting(0), in_loader(1, process(WORKER_LOCK)), waiting(2), waiting(3))
    assert judge(replace(hung, raised=at(exception))) == judge(hung)


def still(*exits: RankExit, nodes: tuple[int, ...] = (0, 1, 2, 3), ends: tuple[int, ...] = ()) -> Evidence:
    """Nothing moves in two captures; the interpreters of the ranks that `ends` names shut down."""
    ranks = [waiting(n, SHUTDOWN if n in ends else ALL_REDUCE) for n in nodes]
    looks = [capture(1000.0, *ranks), capture(1005.0, *ranks)]
    return evidence(*looks, exits=list(exits), nodes=NODES)


def test_an_error_of_a_device_that_was_raised_and_hangs_names_its_node() -> None:
    """A broken node and a wrong program both cause it: restarted in place at first."""
    verdict = judge(replace(still(ends=(1,)), raised=at("RuntimeError: CUDA error: unspecified launch failure")))
    assert [(s.node, s.infrastructure) for s in verdict.suspects] == [("n1", False)]
    assert verdict.corroborated
    assert "has not ended" in verdict.reason


def test_an_outage_that_was_raised_and_hangs_is_settled() -> None:
    """Nothing is gained by waiting for the action limit."""
    verdict = judge(replace(still(ends=(1,)), raised=at("OSError: [Errno 116] Stale file handle")))
    assert (verdict.conclusion, verdict.suspects, verdict.corroborated) == (Conclusion.UNDETERMINED, (), True)
    assert "what nodes share is not available" in verdict.reason


@pytest.mark.parametrize("exception", ["RuntimeError: Connection closed by peer", "KeyboardInterrupt"])
def test_what_a_living_rank_only_followed_is_no_end(exception: str) -> None:
    """It is a victim itself, or somebody ended it: the other evidence decides."""
    exits = tuple(died(n, 100.0, None, 6, *NCCL_TIMEOUT) for n in (0, 2, 3))
    assert judge(Evidence(4, NODES, exits=exits, raised=at(exception))).conclusion is Conclusion.UNDETERMINED
    down = signal(SignalKind.NODE_DOWN, "n3", "down")
    lost = replace(still(nodes=(0, 1, 2)), node_signals=(down,), raised=at(exception))
    assert [s.node for s in judge(lost).suspects] == ["n3"]


def test_an_exception_that_was_caught_stops_nothing() -> None:
    """Some handlers print it with the rank's label: whoever moves has gone on."""
    moving = [
        capture(1000.0 + 5 * i, *(rank(n, process(USER, cpu_s=2.0 * i), step=20 + i) for n in range(4))) for i in (0, 1)
    ]
    looks = evidence(*moving, nodes=NODES)
    assert judge(replace(looks, raised=at("ValueError: bad sample 17, skipped"))).conclusion is Conclusion.NONE


def test_a_death_or_a_dead_node_goes_before_what_was_raised_long_ago() -> None:
    """It had gone on since."""
    killed = Evidence(4, NODES, exits=(died(0, 500.0, None, 11),), raised=at("ValueError: x"))
    assert [s.node for s in judge(killed).suspects] == ["n0"]
    down = replace(
        still(nodes=(0, 1, 2)),
        node_signals=(signal(SignalKind.NODE_DOWN, "n3", "down"),),
        raised=at("ValueError: x"),
    )
    assert [s.node for s in judge(down).suspects] == ["n3"]


def test_a_node_that_lost_all_its_ranks_is_named_whatever_others_have_raised() -> None:
    """They lost these ranks."""
    two = {n: f"n{n // 2}" for n in range(4)}
    ranks = [waiting(0), waiting(1)]
    looks = [capture(1000.0, *ranks), capture(1005.0, *ranks)]
    gone = [RankExit(n, "n1", 999.0, None) for n in (2, 3)]
    found = evidence(*looks, exits=gone, nodes=two)
    for exception in (
        "RuntimeError: Connection closed by peer",
        "torch.distributed.DistBackendError: NCCL error in: x",
    ):
        verdict = judge(replace(found, raised=at(exception)))
        assert [(s.node, s.infrastructure) for s in verdict.suspects] == [("n1", True)]


@pytest.mark.parametrize(
    "line",
    [
        "jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: Socket closed",
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Timed out waiting for clique",
        "RuntimeError: Gloo connectFullMesh failed with SO_ERROR: Connection timed out, remote=[10.0.0.2]:4567",
        "RuntimeError: connect [10.0.0.2]:4567: No route to host",
        "OSError: [Errno 113] No route to host",
    ],
)
def test_what_could_not_be_reached_after_a_crash_is_the_rank_that_crashed(line: str) -> None:
    """No outage: the crash came first."""
    exits = (died(3, 100.0, None, 11), *(died(n, 101.0, 1, 0, *raised(line)) for n in (0, 1, 2)))
    verdict = judge(Evidence(4, NODES, exits=exits))
    assert [s.node for s in verdict.suspects] == ["n3"]


def test_a_service_that_was_logged_is_no_reason_for_lost_peers() -> None:
    """Wandb did not answer once, hours ago; all ranks end by NCCL's watchdog."""
    line = "wandb: ERROR Error while calling W&B API: internal database error (<Response [500]>)"
    exits = (died(0, 100.0, None, 6, line, *NCCL_TIMEOUT), *(died(n, 100.1, None, 6, *NCCL_TIMEOUT) for n in (1, 2, 3)))
    verdict = judge(Evidence(4, NODES, exits=exits))
    assert "lost a peer" in verdict.reason


@pytest.mark.parametrize(
    "lines",
    [
        (
            "slurmstepd: error: pyxis: nvidia-container-cli: initialization error: nvml error",
            "slurmstepd: error: pyxis: couldn't start container",
        ),
        ("srun: error: Unable to create step for job 12: Requested nodes are busy",),
        ("srun: error: Task launch for StepId=12.0 failed on node n2: Communication connection failure",),
    ],
)
def test_a_step_that_could_not_begin_is_tried_again(lines: tuple[str, ...]) -> None:
    """Container, mount or node may have been at fault: the program has not run."""
    verdict = judge(Evidence(0, {}, exits=(RankExit(-1, "", 100.0, 1, 0, lines),)))
    assert (verdict.conclusion, verdict.suspects) == (Conclusion.UNDETERMINED, ())


NO_PROGRAM = "slurmstepd-n{}: error: execve(): /home/u/trian.py: No such file or directory"


@pytest.mark.parametrize(
    "line",
    [
        NO_PROGRAM.format(0),
        "slurmstepd: error: execve(): /home/u/train.py: Permission denied",
        "bash: line 1: trian: command not found",
        "python: can't open file '/home/u/trian.py': [Errno 2] No such file or directory",
        "srun: error: Unable to create step for job 12: Requested node configuration is not available",
    ],
)
def test_what_can_be_started_nowhere_is_the_command_lines(line: str) -> None:
    """A program that does not exist, or a step that cannot be: a second try would end in the same way."""
    verdict = judge(Evidence(0, {}, exits=(RankExit(-1, "", 100.0, 2, 0, (line,)),)))
    assert (verdict.conclusion, verdict.suspects) == (Conclusion.USER_CODE, ())
    assert "no node is at fault" in verdict.reason


def test_a_program_that_one_node_alone_lacks_may_be_that_nodes_mount() -> None:
    """All ranks of one node cannot be started while others can: it is tried again; on all nodes it is not."""
    line = NO_PROGRAM.format(0)
    lacks = [RankExit(n, f"n{n}", 100.0, 2, shared_lines=(line,)) for n in range(4)]
    one = judge(Evidence(4, NODES, exits=(lacks[0],)))
    assert [s.node for s in one.suspects] == ["n0"]
    assert judge(Evidence(4, NODES, exits=tuple(lacks))).conclusion is Conclusion.USER_CODE


def test_one_program_that_is_missing_does_not_explain_the_end_of_another() -> None:
    """A rank was killed: whatever could not be started beside it."""
    exits = (died(3, 100.0, None, 9), RankExit(0, "n0", 100.5, 2, shared_lines=(NO_PROGRAM.format(0),)))
    assert [s.node for s in judge(Evidence(4, NODES, exits=exits)).suspects] == ["n3"]
