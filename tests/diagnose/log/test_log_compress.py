"""Output files become a page: what is kept, what is filtered, who printed it, where and when."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from log_material import TRACEBACK, entry, healthy, page_of, shown, written

from slurm_robust.diagnose.log.compress import compress
from slurm_robust.diagnose.log.interest import Interest
from slurm_robust.diagnose.log.lines import LogFile
from slurm_robust.diagnose.log.page import Speaker


def test_what_healthy_steps_print_is_no_news(tmp_path: Path) -> None:
    """Three lines a step, 300 steps, and one line of another kind: that one is left, and the step counter."""
    lines = healthy(300)
    lines.insert(601, "a checkpoint of another format is converted")
    page = page_of(tmp_path, lines)
    assert [e.line[:12] for e in page.entries] == ["2024-05-01 1", "a checkpoint"]
    assert page.steps == 299
    assert (page.routine_templates, page.routine_lines) == (2, 600)
    assert page.lines == 901
    assert page.entries[0].last_line == "2024-05-01 12:05:00 step 300 loss 0.0100"


def test_what_begins_late_is_news_however_often(tmp_path: Path) -> None:
    """A warning of each of the last twenty steps tells of a change."""
    late = [line for step in range(301, 321) for line in (*healthy(1, step), "grad norm is large")]
    page = page_of(tmp_path, healthy(300) + late)
    found = entry(page, "grad norm")
    assert (found.count, found.routine) == (20, False)


def test_what_is_repeated_while_steps_stand_is_news(tmp_path: Path) -> None:
    """A watchdog that prints again and again, while no step is made."""
    page = page_of(tmp_path, [*healthy(50), *["still waiting"] * 500])
    assert entry(page, "still waiting").count == 500


def test_without_steps_nothing_is_filtered(tmp_path: Path) -> None:
    """Nobody knows which part was healthy: templates and their numbers remain."""
    page = page_of(tmp_path, [f"fetched {n}" for n in range(1000)])
    assert [(e.template, e.count, e.routine) for e in page.entries] == [("fetched <n>", 1000, False)]


def test_interesting_lines_stay_though_healthy_steps_print_them(tmp_path: Path) -> None:
    """Routine, but kept: a rule may want it."""
    lines = [line for step in range(1, 100) for line in (*healthy(1, step), f"retry after error {step}")]
    found = entry(page_of(tmp_path, lines), "retry after error")
    assert (found.count, found.routine, found.name) == (99, True, "word")
    assert not shown(page_of(tmp_path, lines, Interest(words=(b"nothing of this",))), "retry after error")


@pytest.mark.parametrize(
    ("label", "speaker"),
    [
        ("[rank3]: ", Speaker(rank=3)),
        ("\x1b[36m[rank3]:\x1b[0m ", Speaker(rank=3)),
        ("[1,3]<stderr>: ", Speaker(rank=3)),
        ("[default3]:", Speaker(local=3)),
        ("2024-05-01 12:00:00 [Rank 3] ", Speaker(rank=3)),
        ("[E501 12:00:00.123 ProcessGroupNCCL.cpp:616] [Rank 3] ", Speaker(rank=3)),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 3] ", Speaker(rank=3)),
    ],
)
def test_labels_name_the_rank(tmp_path: Path, label: str, speaker: Speaker) -> None:
    """Of torchrun, PyTorch, mpirun."""
    found = entry(page_of(tmp_path, [f"{label}something failed"]), "something failed")
    assert [s.speaker for s in found.speakers] == [speaker]


def test_labels_of_srun_are_told_by_the_whole_file(tmp_path: Path) -> None:
    """`srun --label` pads the task's number; a few lines that begin with a number are no labels."""
    lines = [f"{task:2}: task {task} prints a line of its own" for task in range(12)]
    page = page_of(tmp_path, lines)
    assert [s.speaker.task for s in page.entries[0].speakers] == list(range(12))
    assert page.entries[0].count == 12
    lone = page_of(tmp_path, ["12: this is a list", *["some text"] * 50])
    assert entry(lone, "this is a list").line == "12: this is a list"
    sure = compress([LogFile(written(tmp_path, ["3: only line"]), labelled=True)])
    assert sure.entries[0].speakers[0].speaker == Speaker(task=3)


def test_labels_of_srun_and_torchrun_together(tmp_path: Path) -> None:
    """A rank says all; a local rank needs its task; a node is named by its own label."""
    lines = ["0: [rank5]: one", "1: [default2]:two", "1: [default3]:two", *["1: three"] * 20]
    page = page_of(tmp_path, lines)
    assert entry(page, "one").speakers[0].speaker == Speaker(rank=5, task=0)
    assert [s.speaker for s in entry(page, "two").speakers] == [Speaker(task=1, local=2), Speaker(task=1, local=3)]
    page = page_of(tmp_path, [f"node{n % 3}: hello" for n in range(30)])
    assert [(s.speaker.label, s.count) for s in page.entries[0].speakers] == [(f"node{n}", 10) for n in range(3)]


def test_first_last_and_count_of_each_rank(tmp_path: Path) -> None:
    """Places are lines from 1 and bytes from 0."""
    lines = ["[rank0]: error a", "[rank1]: error b", "[rank0]: error a", "x", "[rank0]: error a"]
    found = entry(page_of(tmp_path, lines), "error a")
    (only,) = found.speakers
    assert (only.count, only.first.line, only.last.line) == (3, 1, 5)
    assert (only.first.offset_bytes, only.last.offset_bytes) == (0, 17 + 17 + 17 + 2)
    assert found.ranks == (0,)


def test_a_bar_that_is_redrawn_is_one_line_of_the_file(tmp_path: Path) -> None:
    """Each drawing counts a step, and what follows has the right line number and offset."""
    bars = b"".join(b"\r %3d%%|##   | %d/100 [00:10<00:20,  3.1it/s]" % (n, n) for n in range(100))
    page = page_of(tmp_path, b"begin\n" + bars + b"\nan error\n")
    assert page.steps == 99
    found = entry(page, "an error")
    assert (found.first.line, found.first.offset_bytes) == (3, 6 + len(bars) + 1)


def test_lines_that_are_glued_to_a_bar_are_lines(tmp_path: Path) -> None:
    """A bar ends without a newline; the first line of a traceback follows it."""
    bar = " 45%|####     | 45/100 [00:10<00:12,  4.3it/s]"
    page = page_of(tmp_path, [f"{bar}{TRACEBACK[0]}", *TRACEBACK[1:], f"{bar}[rank2]: it failed", f"{bar} ok"])
    assert page.tracebacks[0].lines == TRACEBACK
    assert entry(page, "it failed").ranks == (2,)


def test_files_are_merged_by_time(tmp_path: Path) -> None:
    """Whatever their order: by their own times, and those of the lines above them."""
    one = written(tmp_path, ["[2024-05-01 12:00:00,5] a failed", "so failed b", "12:59 nothing"], "one.out")
    two = written(tmp_path, ["early and without time", "I0501 11:00:00.25 1 x.cc:1] c failed"], "two.err")
    os.utime(two, (1714600000, 1714600000))  # glog's times name no year: it is that of the file's last change
    page = compress([LogFile(one), LogFile(two)])
    assert [e.line.split()[-1] for e in page.entries if e.name] == ["failed", "failed", "b"]
    assert [e.first.source for e in page.entries] == [1, 1, 0, 0, 0]
    assert page.entries[-1].first.at_s == page.entries[-2].first.at_s == 1714564800.5


def test_times_without_a_year(tmp_path: Path) -> None:
    """Their year is that of the file's other times; where it has none, that of its last change."""
    lines = ["I0501 11:00:00.25 1 x.cc:1] a failed", "2024-05-01 12:00:00 b failed", "W0501 13:00:00 c failed"]
    page = page_of(tmp_path, lines)
    assert [e.first.at_s for e in page.entries] == [1714561200.25, 1714564800.0, 1714568400.0]


def test_one_file_is_in_order_whatever_its_clocks_say(tmp_path: Path) -> None:
    """Ranks' clocks differ, and zones do."""
    page = page_of(tmp_path, ["2024-05-01 12:00:00 a failed", "2024-05-01 10:00:00 b failed"])
    assert [e.line[-8:] for e in page.entries] == ["a failed", "b failed"]


def test_a_rotated_file_goes_on(tmp_path: Path) -> None:
    """A traceback that the rotation cut, and a line that began with the second file: late in the whole stream."""
    late = [line for step in range(101, 131) for line in (*healthy(1, step), "grad norm is large")]
    one = written(tmp_path, [*healthy(100), *TRACEBACK[:3]], "job.out.1")
    two = written(tmp_path, [*TRACEBACK[3:], *late])
    page = compress([LogFile(one), LogFile(two, continues=True)])
    assert page.tracebacks[0].lines == TRACEBACK
    assert not entry(page, "grad norm").routine
    page = compress([LogFile(one), LogFile(two)])
    assert (page.tracebacks[0].lines, page.tracebacks[0].whole) == (TRACEBACK[:3], False)
    assert not shown(page, "grad norm")


def test_a_file_of_one_rank(tmp_path: Path) -> None:
    """The caller knows whose file it is."""
    files = [LogFile(written(tmp_path, ["it failed"], f"{n}.err"), Speaker(rank=n)) for n in range(3)]
    page = compress(files)
    assert page.entries[0].ranks == (0, 1, 2)
    assert page.entries[0].count == 3


def test_digits_in_words_are_told_apart(tmp_path: Path) -> None:
    """`Xid 79` is looked for, `Xid 63` is not: the same key, but not the same."""
    lines = ["NVRM: Xid 63 row", "NVRM: Xid 79 bus", "NVRM: Xid 63 bus", "NVRM: Xid 79 row"]
    page = page_of(tmp_path, lines, Interest(words=(b"xid 79",)))
    assert [(e.line, e.name, e.count) for e in page.entries if e.name] == [(lines[1], "word", 1), (lines[3], "word", 1)]


def test_a_predicate_is_asked_by_line_or_once_for_all_digits(tmp_path: Path) -> None:
    """Its answers name the entries."""
    lines = [f"exit code {code}" for code in (0, 137, 0, 139, 137)]
    asked: list[str] = []

    def rule(line: str) -> str | None:
        asked.append(line)
        return {"exit code 137": "killed", "exit code 139": "crashed"}.get(line)

    page = page_of(tmp_path, lines, Interest(words=(b"exit code",), accepts=rule))
    assert asked == lines
    assert [(e.line, e.name, e.count) for e in page.entries] == [
        ("exit code 0", "", 2),
        ("exit code 137", "killed", 2),
        ("exit code 139", "crashed", 1),
    ]
    asked.clear()
    page_of(tmp_path, [*lines, *lines], Interest(words=(), accepts=rule, digits_matter=False))
    assert asked == ["exit code 0", "exit code 137"]  # one for each number of digits


def test_colours_do_not_hide_a_word(tmp_path: Path) -> None:
    """Neither around it nor within it; control characters are left out."""
    page = page_of(tmp_path, ["\x1b[31mERR\x1b[1mOR\x1b[0m: disk\x07"])
    assert (page.entries[0].line, page.entries[0].name) == ("ERROR: disk", "word")
    page = page_of(tmp_path, ["code \x1b[31m1\x1b[0m3\x1b[1m7"], Interest(words=(b"code 137",)))
    assert page.entries[0].name == "word"


def test_the_training_s_own_step_lines(tmp_path: Path) -> None:
    """A pattern of the site."""
    lines = [line for n in range(50) for line in (f"tick<{n}>", f"chatter {n}")]
    page = page_of(tmp_path, lines, step_pattern=re.compile(r"tick<(?P<step>\d+)>"))
    assert (page.steps, page.routine_templates) == (49, 1)
    assert page_of(tmp_path, lines).steps == 0


def test_words_that_match_everything_are_refused(tmp_path: Path) -> None:
    """Empty ones, and such that no line can contain."""
    with pytest.raises(ValueError, match="give words of one line"):
        page_of(tmp_path, ["x"], Interest(words=(b"",)))
    with pytest.raises(ValueError, match="give words of one line"):
        page_of(tmp_path, ["x"], Interest(words=(b"a\nb",)))
