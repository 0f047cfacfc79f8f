"""Ranks that ended: which of them is the root, and whose fault is it?"""

from dataclasses import replace

import pytest
from exit_scenes import GLOO_LOST, GLOO_SIZES, NCCL_TIMEOUT, NODES, PORT_TAKEN, chain, died, raised
from localize_scenes import capture, evidence, process, rank, signal, waiting

from slurm_robust.core.model import Conclusion, Grade, SignalKind
from slurm_robust.localize.evidence import Evidence, RankExit
from slurm_robust.localize.exit_causes import Cause, exit_causes
from slurm_robust.localize.judge import judge


@pytest.mark.parametrize(
    ("ended", "cause"),
    [
        (died(0, code=0), Cause.FINISHED),
        (
            died(0, 0, 1, 0, "Traceback (most recent call last):", "TypeError: 'int' object is not callable"),
            Cause.USER_CODE,
        ),
        (died(0, 0, 1, 0, "[rank3]: ModuleNotFoundError: No module named 'apex'"), Cause.USER_CODE),
        (died(0, 0, 1, 0, "omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct"), Cause.USER_CODE),
        (died(0, 0, 1, 0, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"), Cause.USER_CODE),
        (died(0, 0, 1, 0, "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 5x6)"), Cause.USER_CODE),
        (died(0, 0, 2, 0, "train.py: error: unrecognized arguments: --lrr"), Cause.USER_CODE),
        (died(0, 0, 1, 0, *GLOO_LOST), Cause.PEER_LOST),
        (died(0, 0, None, 6, *NCCL_TIMEOUT), Cause.PEER_LOST),
        (died(0, 0, 1, 0, PORT_TAKEN), Cause.EITHER),
        (died(0, 0, None, 6, *GLOO_SIZES), Cause.USER_CODE),
        (
            died(
                0, 0, 1, 0, "RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running collective"
            ),
            Cause.USER_CODE,
        ),
        (died(0, 0, 1, 0, "KeyError: 'x'", "RuntimeError: Connection closed by peer"), Cause.USER_CODE),
        (died(0, 0, 1, 0, *chain("RuntimeError: Connection closed by peer", "KeyError: 'x'")), Cause.PEER_LOST),
        (died(0, 0, 1, 0, *chain("KeyError: 'x'", "RuntimeError: Connection closed by peer")), Cause.USER_CODE),
        (died(0, 0, 1, 0, "RuntimeError: CUDA error: uncorrectable ECC error encountered"), Cause.HARDWARE),
        (
            died(0, 0, 1, 0, "KeyError: 'x'", "NVRM: Xid (PCI:0000:3b:00): 79, fallen off the bus"),
            Cause.HARDWARE,
        ),
        (died(0, 0, 1, 0, "OSError: [Errno 5] Input/output error: '/data/s.bin'"), Cause.SHARED),
        (died(0, 0, 1, 0, "OSError: [Errno 116] Stale file handle: '/data/s.bin'"), Cause.SHARED),
        (died(0, 0, 1, 0, "socket.gaierror: [Errno -3] Temporary failure in name resolution"), Cause.SHARED),
        (died(0, 0, 1, 0, "RuntimeError: CUDA error: unspecified launch failure"), Cause.EITHER),
        (died(0, 0, 1, 0, "RuntimeError: NVLink error was detected during the last kernel"), Cause.HARDWARE),
        (died(0, 0, 1, 0, "ERROR: could not read /x: FileNotFoundError", *raised("RuntimeError: odd")), Cause.FAILED),
        (died(0, 0, 1, 0, "WARNING retrying: 503 Server Error: Service Unavailable for url"), Cause.FAILED),
        (died(0, 0, None, 9, "KeyError: 'x'"), Cause.SIGNAL),
        (died(0, 0, None, 11, "RuntimeError: CUDA error: unspecified launch failure"), Cause.EITHER),
        (
            died(0, 0, 1, 0, "srun: error: n2: task 3: Killed", "srun: Job step aborted"),
            Cause.FAILED,
        ),
        (died(0, 0, 1, 0, "OSError: [Errno 28] No space left on device: '/scratch/x'"), Cause.DISK_FULL),
        (died(0, 0, 1, 0, "RuntimeError: something new"), Cause.FAILED),
        (died(0, 0, 3, 0, *raised("RuntimeError: CUDA error: unspecified launch failure")), Cause.EITHER),
        (died(0, 0, 1, 0, "RuntimeError: DataLoader worker (pid(s) 1234) exited unexpectedly"), Cause.FAILED),
        (
            died(0, 0, 1, 0, "RuntimeError: PytorchStreamReader failed reading zip archive: invalid header"),
            Cause.FAILED,
        ),
        (
            died(0, 0, 1, 0, "RuntimeError: Error(s) in loading state_dict for GPT: size mismatch for x"),
            Cause.USER_CODE,
        ),
        (died(0, 0, 3), Cause.FAILED),
        (died(0, 0, None, 9), Cause.SIGNAL),
        (died(0, 0, 137), Cause.SIGNAL),
        (died(0, 0, None, 9, oom=True), Cause.OOM),
        (died(0, 0, None, 15), Cause.ENDED_FROM_OUTSIDE),
        (died(0, 0, 1, 0, "KeyboardInterrupt"), Cause.ENDED_FROM_OUTSIDE),
        (died(0, 0, None), Cause.VANISHED),
    ],
)
def test_cause(ended: RankExit, cause: Cause) -> None:
    """Exit code, signal and last lines say why; the first exception of a chain is the root."""
    assert exit_causes([ended])[0][1].cause is cause


@pytest.mark.parametrize(("code", "worded"), [(1, True), (134, True), (124, False), (42, False)])
def test_an_unknown_exception_explains_no_code_that_was_chosen(code: int, worded: bool) -> None:
    """Python ends with 1 after an exception; with 124 or 42, `timeout` or a handler has chosen the code."""
    words = raised("ConnectionError: the other rank has ended")
    (_, found), _ = exit_causes([died(0, 0, code, 0, *words), died(1, 0, code, 0, *words)])
    assert (found.finding is not None) is worded
    assert found.signature == f"exit {code}" or worded


def test_a_taken_port_is_the_first_failure_and_no_lost_peer() -> None:
    """Rank 0 cannot listen, its peers cannot connect: the port is named as the reason, and no node is at fault."""
    exits = (died(0, 100.0, 1, 0, PORT_TAKEN), *(died(n, 100.4, 1, 0, *GLOO_LOST) for n in (1, 2, 3)))
    verdict = judge(Evidence(4, NODES, exits=exits))
    assert "failed to listen" in verdict.reason
    assert [(s.ranks, s.infrastructure) for s in verdict.suspects] == [((0,), False)]


def test_sigkill_names_the_first_and_not_its_node() -> None:
    """A killed rank is at fault, its peers followed, and nothing is held against its node."""
    verdict = judge(
        Evidence(4, NODES, exits=(died(1, 100.0, None, 9), *(died(n, 100.4, 1, 0, *GLOO_LOST) for n in (0, 2, 3))))
    )
    assert verdict.conclusion is Conclusion.CULPRIT
    assert [(s.node, s.ranks, s.infrastructure) for s in verdict.suspects] == [("n1", (1,), False)]
    assert verdict.corroborated
    assert "only followed" in verdict.reason


def test_killed_rank_whose_end_was_noticed_late() -> None:
    """Agents look twice a second: a peer's end may be stamped before the first one's."""
    exits = (died(0, 99.7, 1), died(2, 99.8, 1), died(1, 100.0, None, 9))
    assert [s.node for s in judge(Evidence(4, NODES, exits=exits)).suspects] == ["n1"]


def test_user_error_blames_no_node() -> None:
    """A TypeError on one rank, its peers lost: user code, and no suspect at all."""
    exits = (died(1, 100.0, 1, 0, "TypeError: boom"), *(died(n, 100.5, 1, 0, *GLOO_LOST) for n in (0, 2, 3)))
    verdict = judge(Evidence(4, NODES, exits=exits))
    assert verdict.conclusion is Conclusion.USER_CODE
    assert verdict.suspects == ()
    assert "TypeError" in verdict.reason


def test_a_cuda_error_beside_a_fault_that_its_node_reports_is_the_nodes() -> None:
    """Within a minute. An older XID, another node's, or one that a wrong program causes too says nothing about it."""
    exits = (died(1, 1030.0, 1, 0, "RuntimeError: CUDA error: unspecified launch failure"),)
    for node, at_s, xid_number, theirs in (
        ("n1", 1000.0, 79, True),
        ("n1", 900.0, 79, False),
        ("n2", 1000.0, 79, False),
        ("n1", 1000.0, 31, False),
    ):
        xid = replace(signal(SignalKind.NODE_FAULT, node, f"XID {xid_number}"), at_s=at_s)
        verdict = judge(Evidence(4, NODES, exits=exits, node_signals=(xid,)))
        assert [(s.node, s.infrastructure) for s in verdict.suspects] == [("n1", theirs)]
        assert ("its node reports XID 79" in verdict.reason) is theirs


def test_a_shared_outage_names_nobody() -> None:
    """One rank has met it, and the others lost that rank."""
    exits = (
        died(1, 100.0, 1, 0, "OSError: [Errno 107] Transport endpoint is not connected: '/data'"),
        *(died(n, 100.5, 1, 0, *GLOO_LOST) for n in (0, 2, 3)),
    )
    verdict = judge(Evidence(4, NODES, exits=exits))
    assert (verdict.conclusion, verdict.suspects) == (Conclusion.UNDETERMINED, ())
    assert "what nodes share is not available" in verdict.reason


def test_an_error_about_a_peer_blames_nobody() -> None:
    """A transfer to it failed: its end, or the link, and the line does not tell which."""
    line = "NCCL WARN NET/IB : Got completion from peer 10.0.3.7<54321> with status=12 opcode=0 len=0 vendor err 129"
    verdict = judge(Evidence(4, NODES, exits=(died(1, 100.0, 1, 0, line),)))
    assert (verdict.conclusion, verdict.suspects) == (Conclusion.UNDETERMINED, ())
    assert "a peer or the link to it" in verdict.reason


def test_user_error_seen_after_its_victims() -> None:
    """The victims' stamps come first by a second; the error is still the root."""
    exits = (died(0, 99.0, 1, 0, *GLOO_LOST), died(1, 100.0, 1, 0, "ImportError: no"))
    assert judge(Evidence(4, NODES, exits=exits)).conclusion is Conclusion.USER_CODE


def test_hardware_in_its_own_words() -> None:
    """An ECC error is the node's."""
    exits = (died(2, 100.0, 1, 0, "CUDA error: uncorrectable ECC error encountered"), died(0, 100.2, 1, 0, *GLOO_LOST))
    verdict = judge(Evidence(4, NODES, exits=exits))
    assert [(s.node, s.infrastructure) for s in verdict.suspects] == [("n2", True)]


def test_same_hardware_words_everywhere() -> None:
    """A stale file handle on every node is the storage's."""
    exits = tuple(died(n, 100.0, 1, 0, "OSError: [Errno 116] Stale file handle") for n in range(4))
    verdict = judge(Evidence(4, NODES, exits=exits))
    assert verdict.conclusion is Conclusion.UNDETERMINED
    assert verdict.suspects == ()


def test_kill_on_a_node_that_reports_a_fault() -> None:
    """An unexplained death on a node with an XID of the same minutes is the node's."""
    verdict = judge(
        Evidence(
            4, NODES, exits=(died(1, 100.0, None, 11),), node_signals=(signal(SignalKind.NODE_FAULT, "n1", "XID 79"),)
        )
    )
    assert verdict.suspects[0].infrastructure
    assert "XID 79" in verdict.suspects[0].why


def test_node_gone_with_its_ranks() -> None:
    """Ranks that vanish with a node that Slurm calls down: the node."""
    exits = (died(3, 100.0, None), died(0, 103.0, 1, 0, *GLOO_LOST))
    verdict = judge(
        Evidence(4, NODES, exits=exits, node_signals=(signal(SignalKind.NODE_DOWN, "n3", "not responding"),))
    )
    assert [(s.node, s.infrastructure) for s in verdict.suspects] == [("n3", True)]
    assert verdict.corroborated


def test_a_victim_on_a_node_whose_agent_died() -> None:
    """A rank that could still say that it lost a peer had a living node; the killed one is the root."""
    exits = (died(3, 100.0, 1, 0, *GLOO_LOST), died(1, 100.2, None, 9))
    verdict = judge(Evidence(4, NODES, exits=exits, node_signals=(signal(SignalKind.AGENT_SILENT, "n3"),)))
    assert [s.node for s in verdict.suspects] == ["n1"]


def test_cancelled() -> None:
    """SIGTERM to all: scancel, preemption, the time limit."""
    exits = tuple(died(n, 100.0, None, 15) for n in range(4))
    verdict = judge(Evidence(4, NODES, exits=exits))
    assert (verdict.conclusion, verdict.suspects, verdict.corroborated) == (Conclusion.NONE, (), False)


def test_steps_that_slurm_ends_with_a_lost_node_were_not_cancelled() -> None:
    """A rank elsewhere got SIGTERM, as from scancel: the sentence names the node that Slurm has lost."""
    found = judge(
        evidence(exits=(died(1, 100.0, None, 15),), signals=[signal(SignalKind.NODE_DOWN, "n0")], nodes=NODES)
    )
    assert found.conclusion is Conclusion.NONE
    assert found.reason.endswith("(SIGTERM), since Slurm has lost n0 and ends the job's steps")


def test_killed_together() -> None:
    """SIGKILL on every node within a moment: nobody was first."""
    verdict = judge(Evidence(4, NODES, exits=tuple(died(n, 100.0 + n / 10, None, 9) for n in range(4))))
    assert (verdict.conclusion, verdict.suspects) == (Conclusion.UNDETERMINED, ())


def test_clean_end() -> None:
    """All ranks end with 0, the first a little before the others: nothing happened."""
    assert judge(Evidence(4, NODES, exits=(died(0, code=0),))).conclusion is Conclusion.NONE
    assert judge(Evidence(4, NODES, exits=tuple(died(n, code=0) for n in range(4)))).conclusion is Conclusion.NONE


def test_left_early() -> None:
    """A rank that ended with 0 while the others wait in a collective: the program's doing."""
    ranks = [rank(1), waiting(0), waiting(2), waiting(3)]
    looks = [capture(1000.0, *ranks), capture(1005.0, *ranks)]
    left = died(1, 999.0, code=0)
    verdict = judge(evidence(*looks, exits=[left]))
    assert (verdict.conclusion, verdict.suspects) == (Conclusion.USER_CODE, ())
    assert judge(evidence(looks[0], exits=[left])).conclusion is Conclusion.NONE
    long_ago = judge(evidence(*looks, exits=[died(1, 900.0, code=0)]))
    assert (long_ago.conclusion, long_ago.suspects) == (Conclusion.UNDETERMINED, ())


def test_vanished_may_have_finished() -> None:
    """An agent sees no exit code: a rank that vanished is acted on only when the others are seen to wait for it."""
    gone = died(1, 100.0, None)
    assert not judge(Evidence(4, NODES, exits=(gone,))).corroborated
    ranks = [rank(1), waiting(0), waiting(2), waiting(3)]
    waited = evidence(capture(1000.0, *ranks), capture(1005.0, *ranks), exits=[gone])
    assert judge(waited).corroborated
    ending = [rank(1), *(rank(n, process((), cpu_s=1.0)) for n in (0, 2, 3))]
    assert not judge(evidence(capture(1000.0, *ending), capture(1005.0, *ending), exits=[gone])).corroborated


def test_only_victims() -> None:
    """Every exit is a victim's and nothing else is known: undetermined, and what would tell."""
    verdict = judge(Evidence(4, NODES, exits=tuple(died(n, 100.0, 1, 0, *GLOO_LOST) for n in (0, 2))))
    assert (verdict.conclusion, verdict.suspects) == (Conclusion.UNDETERMINED, ())
    assert any("first death" in what for what in verdict.missing)


def test_timeouts_leave_it_to_the_captures() -> None:
    """All ranks die of a collective's timeout; the captures before show who was stopped."""
    ranks = [waiting(0), rank(1, process((), state="T")), waiting(2), waiting(3)]
    exits = [replace(died(n, 2000.0, None, 6, *NCCL_TIMEOUT)) for n in (0, 2, 3)]
    verdict = judge(evidence(capture(1000.0, *ranks), capture(1005.0, *ranks), exits=exits))
    assert [s.node for s in verdict.suspects] == ["n1"]


def test_a_vanished_rank_hides_nothing_that_is_surer() -> None:
    """It may have finished: what the stacks show of the others counts before it."""
    gone = died(1, 100.0, None)
    stopped = [waiting(0), rank(2, process((), state="T")), waiting(3)]
    verdict = judge(evidence(capture(1000.0, *stopped), capture(1005.0, *stopped), exits=[gone], nodes=NODES))
    assert [s.node for s in verdict.suspects] == ["n2"]
    moving = [rank(n, process(()), step=20) for n in (0, 2, 3)], [rank(n, process(()), step=21) for n in (0, 2, 3)]
    looks = [capture(1000.0 + 5 * i, *ranks) for i, ranks in enumerate(moving)]
    assert judge(evidence(*looks, exits=[gone], nodes=NODES)).conclusion is Conclusion.NONE


def test_a_vanished_rank_that_the_others_wait_for_takes_two_seconds() -> None:
    """It cannot go on by itself: two looks, two seconds apart."""
    ranks = [waiting(0), waiting(2), waiting(3)]
    for apart_s, sure in ((1.0, False), (2.2, True)):
        looks = evidence(
            capture(1000.0, *ranks), capture(1000.0 + apart_s, *ranks), exits=[died(1, 99.0, None)], nodes=NODES
        )
        verdict = judge(looks)
        assert (verdict.corroborated, [s.node for s in verdict.suspects]) == (sure, ["n1"])
        assert "no exit code was seen" in verdict.reason


ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def test_a_line_that_names_no_rank_blames_no_node() -> None:
    """One hardware text and two exits: neither node is at fault by it; it is said, and what would tell."""
    exits = [replace(died(n, 100.0 + n / 10), shared_lines=(ECC, "KeyError: 'x'")) for n in (1, 2)]
    verdict = judge(Evidence(8, {n: f"n{n}" for n in range(8)}, exits=tuple(exits)))
    assert not any(s.infrastructure for s in verdict.suspects)
    assert "ECC" in verdict.reason
    assert any("which rank printed it" in what for what in verdict.missing)


def test_slurms_lines_about_a_lost_node_hide_it_not() -> None:
    """The connection to a node broke: no outage of Slurm's. Where the step never began, its line is the reason."""
    lines = ("srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 2",)
    exits = (replace(died(2, 100.0, None), shared_lines=lines), died(0, 103.0, 1, 0, *GLOO_LOST))
    silent = signal(SignalKind.AGENT_SILENT, "n2")
    verdict = judge(Evidence(4, NODES, exits=exits, node_signals=(silent,)))
    assert [(s.node, s.infrastructure) for s in verdict.suspects] == [("n2", True)]
    down = RankExit(-1, "", 100.0, 1, 0, ("srun: error: Unable to contact slurm controller (connect failure)",))
    assert "what nodes share is not available" in judge(Evidence(0, {}, exits=(down,))).reason


def test_a_line_that_is_the_reason_is_not_repeated() -> None:
    """One node alone: its line without a label is its own."""
    line = "RuntimeError: CUDA error: unspecified launch failure"
    verdict = judge(Evidence(4, NODES, exits=(replace(died(1), shared_lines=(line,)),)))
    assert verdict.reason.count("unspecified launch failure") == 1
    assert verdict.missing == ()


def test_an_unlabelled_line_speaks_for_the_job() -> None:
    """The program's own error, which no node is blamed for anyway, needs no label; a killed rank said nothing."""
    lines = ("ModuleNotFoundError: No module named 'apex'",)
    exits = tuple(replace(died(n), shared_lines=lines) for n in range(4))
    assert judge(Evidence(4, NODES, exits=exits)).conclusion is Conclusion.USER_CODE
    killed = replace(died(1, 100.0, None, 9), shared_lines=GLOO_LOST)
    others = tuple(replace(died(n, 100.4), shared_lines=GLOO_LOST) for n in (0, 2, 3))
    assert [s.node for s in judge(Evidence(4, NODES, exits=(killed, *others))).suspects] == ["n1"]


def test_a_whole_step_that_ended_with_a_hardware_text_names_no_node() -> None:
    """Nothing is known of single ranks: undetermined, and no suspect without a name."""
    verdict = judge(Evidence(4, NODES, exits=(RankExit(-1, "", 100.0, 1, 0, (ECC,)),)))
    assert (verdict.conclusion, verdict.suspects) == (Conclusion.UNDETERMINED, ())
    assert "ECC" in verdict.reason


def test_one_that_finished_too_early_is_the_programs() -> None:
    """Exit code 0 of one, and the others lost a peer: no death of a node, and nothing to look for on it."""
    exits = (died(2, 100.0, 0), *(died(n, 100.3, 1, 0, *GLOO_LOST) for n in (0, 1, 3)))
    found = judge(Evidence(4, NODES, exits=exits))
    assert (found.conclusion, found.suspects) == (Conclusion.USER_CODE, ())
    assert "rank 2 ended with exit code 0" in found.reason
    alone = judge(Evidence(4, NODES, exits=exits[1:]))
    assert alone.conclusion is Conclusion.UNDETERMINED, "without that rank's exit nobody knows"


@pytest.mark.parametrize(("ended_s", "early"), [(998.0, True), (900.0, False)])
def test_one_that_finished_before_the_last_step_is_not_waited_for(ended_s: float, early: bool) -> None:
    """It finished, and the others went on: their hang has another reason. Only at the last step did it leave early."""
    looks = tuple(capture(1000.0 + t, *(waiting(n) for n in (0, 1, 3))) for t in (0.0, 5.0, 10.0))
    known = Evidence(4, NODES, looks, exits=(died(2, ended_s, 0),))
    assert ("too early" in judge(known).reason) is early
    assert (judge(known).grade is Grade.STRONG) is not early


def test_lines_of_the_log_show_that_the_others_went_on() -> None:
    """Where ranks report no progress themselves, the newest line of the log is the sign."""
    members = tuple(replace(waiting(n), progress=None) for n in (0, 1, 3))
    looks = tuple(capture(1000.0 + t, *members) for t in (0.0, 5.0, 10.0))
    silent = Evidence(4, NODES, looks, exits=(died(2, 900.0, 0),))
    assert "too early" in judge(silent).reason
    assert "too early" not in judge(replace(silent, last_sign_s=990.0)).reason
    others = tuple(died(n, 1011.0, 1, 0, *GLOO_LOST) for n in (0, 1, 3))
    died_later = replace(silent, last_sign_s=990.0, exits=(*silent.exits, *others))
    assert judge(died_later).conclusion is Conclusion.UNDETERMINED


@pytest.mark.parametrize(("urgency", "theirs"), [("now", True), ("if_repeated", False), ("at_next_checkpoint", False)])
def test_only_an_urgent_fault_of_its_node_explains_an_end_without_words(urgency: str, theirs: bool) -> None:
    """A link that was down for a moment does not end a program with exit code 3."""
    fault = replace(signal(SignalKind.NODE_FAULT, "n1", "fault"), evidence={"urgency": urgency, "kind": "port"})
    verdict = judge(Evidence(4, NODES, exits=(died(1, 1000.0, 3),), node_signals=(fault,)))
    assert [(s.node, s.infrastructure) for s in verdict.suspects] == [("n1", theirs)]
