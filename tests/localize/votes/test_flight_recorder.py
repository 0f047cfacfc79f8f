"""Dumps side by side: who holds all others, and when nobody is named."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from localize_scenes import capture, evidence, waiting
from recorder_dumps import TENSOR, WORLD, dump, entry, plain

from slurm_robust.cli.commands.localize import command
from slurm_robust.core.model import Conclusion, Verdict
from slurm_robust.localize.evidence import RankCapture
from slurm_robust.localize.judge import judge
from slurm_robust.localize.recorder.dump import RankDump, read_dumps
from slurm_robust.localize.votes.flight_recorder import judge_dumps

REAL = Path(__file__).resolve().parents[4] / "shared/data/flight_recorder"
FOUR = {WORLD: [0, 1, 2, 3]}
NODES = {r: f"n{r}" for r in range(8)}


def verdict(dumps: Sequence[RankDump]) -> Verdict:
    """What these say together; there is something to say."""
    found = judge_dumps(dumps, NODES)
    assert found is not None
    return found


def waits(rank: int, seq: int = 5) -> RankDump:
    """A rank of four whose last collective is not complete."""
    return dump(rank, [entry(10, seq)], {0: (seq, seq - 1)}, FOUR)


def idle(rank: int, seq: int = 4) -> RankDump:
    """A rank of four with nothing outstanding."""
    return dump(rank, [entry(9, seq, state="completed")], {0: (seq, seq)}, FOUR)


def ranks(found: Verdict) -> list[int]:
    """All suspected ranks."""
    return [r for s in found.suspects for r in s.ranks]


@pytest.mark.parametrize(("case", "truth"), [("gpu_error_1st", [12, 14]), ("lock_gil_1st", [9, 14])])
def test_real_dumps(case: str, truth: list[int]) -> None:
    """Dumps of 16 ranks of a real Megatron job with faults injected on two: those two and no other."""
    if not REAL.is_dir():
        pytest.skip(f"{REAL} is not there: the real dumps are not part of this project")
    found = judge_dumps(tuple(read_dumps(REAL / case).dumps.values()), {})
    assert found is not None
    assert found.conclusion is Conclusion.CULPRIT
    assert sorted(ranks(found)) == truth


def test_who_never_joined_is_the_suspect() -> None:
    """All others wait in an operation that it never enqueued, and it waits for nobody."""
    found = verdict([waits(0), waits(1), idle(2), waits(3)])
    assert ranks(found) == [2]
    assert found.suspects[0].node == "n2"
    assert found.reason == "rank 2 on n2: never joined all_reduce 5 of group_0 (ranks 0-3)"
    assert found.suspects[0].detail == "ranks 0-1,3 wait for it there"


def test_a_device_that_holds_what_others_completed() -> None:
    """Enqueued everywhere, complete on all but one: that one's device."""
    done = [dump(r, [], {0: (5, 5)}, FOUR) for r in (0, 1, 2)]
    found = verdict([*done, waits(3)])
    assert ranks(found) == [3]
    assert "its device has not completed all_reduce 5" in found.reason


@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather"])
def test_one_sided_operations_say_nothing_of_a_device(name: str) -> None:
    """A broadcast's source completes at once: whoever still waits in it is no suspect for that."""
    held = dump(3, [entry(10, 5, name)], {0: (5, 4)}, FOUR)
    done = [dump(r, [], {0: (5, 5)}, FOUR) for r in (0, 1, 2)]
    assert verdict([*done, held]).conclusion is Conclusion.UNDETERMINED


def test_all_joined_and_none_completed_names_the_group_only() -> None:
    """A link fault leaves all at one number: no node, the group is named."""
    found = verdict([waits(r) for r in range(4)])
    assert found.conclusion is Conclusion.UNDETERMINED
    assert "ranks 0-3 all joined all_reduce 5 of group_0" in found.reason


def test_the_chain_is_followed_to_its_end() -> None:
    """0 and 1 wait for 2 and 3 in the world, which wait in their own group for 3 alone: 3 it is."""
    groups = {WORLD: [0, 1, 2, 3], TENSOR: [2, 3]}
    two = dump(2, [entry(10, 8, group=TENSOR, number=1)], {0: (4, 4), 1: (8, 7)}, groups)
    three = dump(3, [entry(9, 7, group=TENSOR, number=1, state="completed")], {0: (4, 4), 1: (7, 7)}, groups)
    assert ranks(verdict([waits(0), waits(1), two, three])) == [3]


def test_a_circle_names_nobody() -> None:
    """Two groups entered in different order: each waits for the other, the program's fault or a lost message."""
    groups = {WORLD: [0, 1], TENSOR: [0, 1]}
    zero = dump(0, [entry(10, 5), entry(11, 8, group=TENSOR, number=1)], {0: (5, 4), 1: (8, 7)}, groups)
    one = dump(1, [entry(10, 8, group=TENSOR, number=1), entry(11, 5)], {0: (5, 4), 1: (8, 7)}, groups)
    found = verdict([zero, one])
    assert found.conclusion is Conclusion.UNDETERMINED
    assert not found.suspects


@pytest.mark.parametrize("other", [entry(10, 5, sizes=((8,),)), entry(10, 5, "barrier")])
def test_different_operations_under_one_number_are_the_programs_fault(other: dict[str, object]) -> None:
    """Another shape or another operation: user code, no node."""
    found = verdict([waits(0), waits(1), waits(2), dump(3, [other], {0: (5, 4)}, FOUR)])
    assert found.conclusion is Conclusion.USER_CODE
    assert not found.suspects
    assert "number 5 of group_0" in found.reason


def test_uneven_all_to_all_is_no_mismatch() -> None:
    """Its sizes differ by nature."""
    dumps = [
        dump(r, [entry(10, 5, "all_to_all", sizes=((r + 1,),))], {0: (5, 4)}, FOUR) if r else idle(r) for r in range(4)
    ]
    assert ranks(verdict(dumps)) == [0]


def test_a_pair_that_nobody_answers() -> None:
    """A receive whose sender never sent: the sender; its own unanswered send makes it no victim."""
    zero = dump(0, [entry(10, 3, "send 0->1")], {}, {WORLD: [0, 1, 2]})
    one = dump(1, [entry(10, 4, "recv 1<-2")], {}, {WORLD: [0, 1, 2]})
    two = dump(2, [], {}, {WORLD: [0, 1, 2]})
    assert ranks(verdict([zero, one, two])) == [2]


def test_a_missing_dump_names_nobody() -> None:
    """All wait for a rank that left no dump: it may be dead, or the file lost; it is told, and not named."""
    found = verdict([waits(0), waits(1), waits(3)])
    assert found.conclusion is Conclusion.UNDETERMINED
    assert found.reason == "the recorded waiting ends at rank 2, without a flight-recorder dump"
    assert found.missing[0] == "flight-recorder dumps of rank 2"


def test_many_holders_are_no_nodes_fault() -> None:
    """More than half of the nodes hold the others: what they share, not a node."""
    found = verdict([waits(0), idle(1), idle(2), idle(3)])
    assert found.conclusion is Conclusion.UNDETERMINED


def test_nothing_pending_is_no_verdict() -> None:
    """Recorders of a job that runs have nothing to say."""
    assert judge_dumps([idle(r) for r in range(4)], NODES) is None
    assert judge_dumps([], NODES) is None


def test_the_judge_asks_the_recorder_before_python_stacks() -> None:
    """Under NCCL all stand at one place in Python; the recorder knows who never joined."""
    stacks = evidence(capture(0, *(waiting(r) for r in range(4))))
    assert judge(stacks).conclusion is Conclusion.UNDETERMINED
    dumps = {d.rank: d for d in (waits(0), waits(1), idle(2), waits(3))}
    found = judge(replace(stacks, recorder=dumps, rank_nodes=NODES))
    assert ranks(found) == [2]


@given(st.sets(st.integers(0, 3), min_size=1, max_size=1), st.permutations(range(4)))
def test_the_order_of_the_dumps_does_not_matter(late: set[int], order: list[int]) -> None:
    """One late rank is found, whatever order the files come in."""
    dumps = [idle(r) if r in late else waits(r) for r in order]
    assert set(ranks(verdict(dumps))) == late


def test_the_command(tmp_path: Path) -> None:
    """`srobust localize --flight-recorder DIR` names the rank, and the node where it can be counted."""
    for r in range(4):
        late = r == 2
        entries = [] if late else [entry(10, 5)]
        (tmp_path / f"trace_{r}").write_bytes(pickle.dumps(plain(entries, {0: (4 if late else 5, 4)}, FOUR)))
    words = ["--flight-recorder", str(tmp_path)]
    done = CliRunner().invoke(command, [*words, "--json", "--ranks-per-node", "2"])
    assert done.exit_code == 0
    assert [s["node"] for s in json.loads(done.stdout)["suspects"]] == ["node1"]
    done = CliRunner().invoke(command, words)
    assert "suspect rank 2, confidence 0.90: rank 2: never joined all_reduce 5" in done.output
    done = CliRunner().invoke(command, [])
    assert done.exit_code == 2
    assert "--flight-recorder DIR" in done.output


def test_a_missing_dump_and_what_else_is_known() -> None:
    """Its stack shows it in a collective: nobody is named. Its process is gone: it is."""
    dumps = {r: waits(r) for r in (0, 1, 3)}
    seen = evidence(capture(1.0, *(waiting(r) for r in range(4))), capture(6.0, *(waiting(r) for r in range(4))))
    assert judge(replace(seen, recorder=dumps)).conclusion is Conclusion.UNDETERMINED
    gone = [*(waiting(r) for r in (0, 1, 3)), RankCapture(2, "n2")]
    assert ranks(judge(replace(evidence(capture(1.0, *gone), capture(6.0, *gone)), recorder=dumps))) == [2]


def test_a_send_that_nobody_receives_is_a_wait() -> None:
    """0 and 1 wait for 2 in the world; 2 waits to send to 3, which posted nothing and waits for nobody: 3 it is."""
    groups = {WORLD: [0, 1, 2, 3], TENSOR: [2, 3]}
    sends = dump(2, [entry(10, 1, "send 0->1", group=TENSOR, number=1)], {0: (4, 4), 1: (0, 0)}, groups)
    assert ranks(verdict([waits(0), waits(1), sends, idle(3)])) == [3]


def test_whoever_has_something_outstanding_waits() -> None:
    """1 never joined what 0 waits in, but its own send to 2 waits; 2 is held by 3, which has nothing open."""
    groups = {WORLD: [0, 1, 2, 3], TENSOR: [0, 1], "9": [1, 2]}
    zero = dump(0, [entry(10, 8, group=TENSOR, number=1)], {0: (4, 4), 1: (8, 7)}, groups)
    one = dump(1, [entry(10, 1, "send 0->1", group="9", number=2)], {0: (4, 4), 1: (7, 7)}, groups)
    two = dump(2, [entry(10, 6), entry(11, 1, "recv 1<-0", group="9", number=2)], {0: (6, 5)}, groups)
    assert ranks(verdict([zero, one, two, dump(3, [], {0: (5, 5)}, groups)])) == [3]


def test_a_device_that_never_began() -> None:
    """All joined, each as the first, and all devices but one began it: that one's. Without starts nobody is named."""
    began = [dump(r, [entry(10, 5, state="started")], {0: (5, 4)}, FOUR) for r in (0, 1, 2)]
    found = verdict([*began, waits(3)])
    assert ranks(found) == [3]
    assert found.suspects[0].why.endswith("its device never began all_reduce 5 of group_0 (ranks 0-3)")
    # It has something else before it: it is held, and not by its device.
    behind = dump(3, [entry(9, 2, "recv 3<-0"), entry(10, 5)], {0: (5, 4)}, FOUR)
    assert not verdict([*began, behind]).suspects


def closed(*groups: Sequence[int]) -> Verdict:
    """All members of each group wait in it, and have joined it."""
    names = {str(70 + n): list(members) for n, members in enumerate(groups)}
    dumps = []
    for rank in sorted({rank for members in groups for rank in members}):
        mine = {n: members for n, members in names.items() if rank in members}
        (name,) = mine
        dumps.append(dump(rank, [entry(10, 5, group=name, number=1)], {1: (5, 4)}, mine))
    found = judge_dumps(dumps, {r: f"n{r // 2}" for r in range(8)})
    assert found is not None
    return found


def test_operations_that_share_one_node() -> None:
    """Two groups that are closed and never complete cross in one node: its link. Within one node: that node."""
    found = closed((0, 2), (3, 4))
    assert [(s.node, s.ranks) for s in found.suspects] == [("n1", (2, 3))]
    assert [s.node for s in closed((2, 3)).suspects] == ["n1"]
    assert [s.node for s in closed((0, 2), (4, 6)).suspects] == []  # they share none
    assert [s.node for s in closed((0, 2), (1, 3)).suspects] == []  # they share two
