"""Tracebacks of several speakers, of unknown loggers, on one line and in boxes: where each ends, and with what."""

from __future__ import annotations

import pytest

from slurm_robust.diagnose.findings import LogFinding, findings
from slurm_robust.diagnose.raised import BEGINS, Tracebacks
from slurm_robust.diagnose.root import diagnose
from slurm_robust.diagnose.signature import signature

FRAMES = [f"{BEGINS}:", '  File "/w/train.py", line 12, in loss', "    raise ValueError('never')"]
CHAINED = "During handling of the above exception, another exception occurred:"


def ended(lines: list[str]) -> list[LogFinding]:
    """The exceptions that ended a traceback."""
    return [finding for finding in findings(lines) if finding.in_traceback]


def test_ranks_that_print_in_turn_keep_their_tracebacks_apart() -> None:
    """What one rank was handling has nothing to do with the other's exception."""
    first, second = [f"[rank0]: {line}" for line in FRAMES], [f"[rank1]: {line}" for line in FRAMES]
    second[1] = second[1].replace("train.py", "data.py")
    lines = [line for both in zip(first, second, strict=True) for line in both]
    lines += ["[rank0]: KeyError: 'x'", f"[rank0]: {CHAINED}", "[rank1]: TypeError: no x"]
    one, other = ended(lines)
    assert (one.place, other.place) == ("train.py:loss", "data.py:loss")
    assert not other.followed
    assert ended([*lines[:-1], *first, "[rank0]: ValueError: no x"])[-1].followed


@pytest.mark.parametrize(
    "label",
    [
        "app-1  | ",
        "[2026-02-27T21:35:32.106313Z] fa88a9df || ",
        "2026-10-31 03:11:02,473 - trainer - ERROR - ",
        "(EngineCore_0 pid=20) ERROR 04-17 23:05:06 [core.py:390] ",
        "Wed Apr  8 12:05:15 2026[0]<stderr>:",
        "[1,mpirank:0,algo-1]<stdout>:",
        "pretrain/0 [default0]:[rank0]: ",
        "some collector 17 <> ",
    ],
)
def test_a_traceback_is_read_behind_any_label(label: str) -> None:
    """The label of its first line is that of the others, but for the digits."""
    (finding,) = ended([f"{label}{line}" for line in (*FRAMES, "KeyError: 'x'")])
    assert (finding.category.name, finding.place) == ("key", "train.py:loss")


def test_a_label_that_looks_like_a_host_is_no_exception() -> None:
    """`RuntimeError: [1] …` stays what it is."""
    (finding,) = ended([*FRAMES, "RuntimeError: [1] is setting up"])
    assert finding.category.name == "runtime"


def test_directly_after_the_code_any_class_is_an_exception() -> None:
    """And nothing else is: a word of the program's own is none."""
    (finding,) = ended([*FRAMES, "our.shards.ShardGone: number 7"])
    assert (finding.rule.id, finding.place) == ("any-exception", "train.py:loss")
    assert ended([*FRAMES, "step 7: 2 s"]) == []
    assert ended([*FRAMES, "", "Shards: 7"]) == []


def test_what_fails_while_an_object_is_deleted_ends_nothing() -> None:
    """The interpreter reports it and goes on."""
    lines = ["Exception ignored in: <function Pool.__del__ at 0x7f>", *FRAMES, "AttributeError: no pool"]
    assert [finding.mild for finding in ended(lines)] == [True]
    found = diagnose(findings([*lines, *FRAMES, "RuntimeError: shard 7"]))
    assert found.root is not None
    assert found.root.text == "RuntimeError: shard 7"


def test_a_traceback_on_one_line_is_read_as_its_lines() -> None:
    """Loggers that write JSON join it."""
    joined = r"\n".join((*FRAMES, "KeyError: 'x'"))
    (finding,) = ended([f'{{"level": "error", "exc_info": "{joined}'])
    assert (finding.category.name, finding.number) == ("key", 0)


def test_code_in_boxes_names_errors_that_never_happened() -> None:
    """Rich draws the code around each place; the exception stands outside."""
    lines = [
        f"╭─────────── {BEGINS} ───────────╮",
        "│ /w/train.py:12 in loss                                     │",
        '│ ❱ 12 │   raise OSError(28, "No space left on device")      │',
        "╰────────────────────────────────────────────────────────────╯",
        "KeyError: 'x'",
    ]
    assert [finding.category.name for finding in findings(lines)] == ["key"]


def test_the_library_that_raised_it_may_change_what_an_error_means() -> None:
    """A semaphore that cannot be made for want of space is no matter of disks."""
    full = "OSError: [Errno 28] No space left on device"
    queue = [FRAMES[0], '  File "/usr/lib/python3.12/multiprocessing/synchronize.py", line 57, in __init__', "    f()"]
    assert ended([*queue, full])[0].category.name == "shared_memory"
    assert ended([*FRAMES, full])[0].category.name == "disk_full"


def test_a_signature_does_not_depend_on_the_label() -> None:
    """The same failure behind a collector's label is the same."""
    one, other = (ended([f"{label}{line}" for line in (*FRAMES, "KeyError: 'x'")])[0] for label in ("", "[rank3]: "))
    assert signature(one) == signature(other)


def test_speakers_without_end_are_forgotten() -> None:
    """A log in which each line has a label of its own takes no more and more memory."""
    tracebacks = Tracebacks()
    for number in range(20_000):
        tracebacks.read("step", f"[rank{number}]: step")
    assert len(tracebacks._of) <= 4096


SERIALIZATION = '  File "/env/lib/python3.11/site-packages/torch/serialization.py", line {}, in {}'


@pytest.mark.parametrize(
    ("frames", "error", "rule"),
    [
        ([(1568, "load"), (807, "__init__")], "OSError: [Errno 22] Invalid argument", "checkpoint-unreadable"),
        ([(1626, "load"), (1886, "_legacy_load")], "EOFError", "checkpoint-unreadable"),
        ([(1626, "load"), (1886, "_legacy_load")], "EOFError: Ran out of input", "checkpoint-unreadable"),
        ([(1568, "load")], "FileNotFoundError: [Errno 2] No such file or directory: 'a.pt'", "file-not-found"),
        ([(1568, "load")], "OSError: [Errno 116] Stale file handle: 'a.pt'", "stale-handle"),
        ([(955, "save"), (800, "__init__")], "OSError: [Errno 22] Invalid argument", "runtime"),
    ],
)
def test_what_torch_load_cannot_read_is_a_damaged_checkpoint(
    frames: list[tuple[int, str]], error: str, rule: str
) -> None:
    """Whatever the interpreter calls it; a file that is not there, dead storage and a save stay what they are."""
    places = [line for number, name in frames for line in (SERIALIZATION.format(number, name), "    return f(x)")]
    (finding,) = ended([*FRAMES[:2], "    torch.load(path)", *places, error])
    assert finding.rule.id == rule
    assert finding.place == "train.py:loss"
    if rule == "checkpoint-unreadable":
        assert "srobust ckpt verify" in finding.rule.remedy
        assert "rename" in finding.rule.remedy


PDB = [*FRAMES[:2], "    breakpoint()", '  File "/usr/lib/python3.11/bdb.py", line 115, in dispatch_line',
       "    if self.quitting: raise BdbQuit", "                      ^^^^^^^^^^^^^"]  # fmt: skip


@pytest.mark.parametrize("between", [[], ["step 7 loss 2.3"]])
def test_a_breakpoint_that_was_left_in_is_the_programs(between: list[str]) -> None:
    """Nobody answers the debugger in a batch job; the remedy says what to take out."""
    found = diagnose(findings([*PDB, *between, "bdb.BdbQuit"]))
    assert found.root is not None
    assert (found.root.text, found.root.in_traceback, found.blame.value) == ("bdb.BdbQuit", True, "program")
    assert "breakpoint()" in found.root.rule.remedy


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("mylib.errors.ShardMissing", True),
        ("bdb.BdbQuit", True),
        ("trainer.Trainer: step 7", False),
        ("model.safetensors", False),
    ],
)
def test_a_class_with_its_module_ends_a_traceback_also_behind_others_lines(line: str, ends: bool) -> None:
    """Ranks without labels print in turn; what only looks like a class's name and says more is anybody's line."""
    assert [one.text for one in ended([*FRAMES, "step 7 loss 2.3", line])] == [line] * ends
    assert findings([line]) == [] or line == "bdb.BdbQuit", "alone it is no exception"
