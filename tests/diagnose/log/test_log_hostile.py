"""Whatever is in the files: nothing interesting is lost, nothing crashes, and memory is bounded."""

from __future__ import annotations

import gzip
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from log_material import TRACEBACK, entry, page_of, written

from slurm_robust.diagnose.log import lines as lines_module
from slurm_robust.diagnose.log.compress import MEMORY_BYTES, compress
from slurm_robust.diagnose.log.interest import Interest, any_of
from slurm_robust.diagnose.log.lines import LINE_BYTES, OVERLAP_BYTES, LogFile, LogReader
from slurm_robust.diagnose.log.prefix import read_prefix, read_speaker, strip_escapes
from slurm_robust.diagnose.log.render import render
from slurm_robust.diagnose.log.templates import template_of

TEXT = st.text(alphabet="ab019 .:/-[]=|%#xE\x1b\té█", max_size=40)
LABELS = st.sampled_from(["", "[rank0]: ", "[rank1]:", "[default2]:", "\x1b[31m", "2024-05-01 12:00:00 ", "3: "])
LINES = st.lists(st.tuples(LABELS, TEXT).map("".join), max_size=30)
WORDS = st.lists(st.sampled_from([b"ab", b"a0", b"a 1", b"E", b"019", b"/a", b"\xc3\xa9"]), min_size=1, max_size=4)


@given(LINES, WORDS, st.booleans())
@settings(max_examples=300)
def test_nothing_with_a_word_in_it_is_lost(lines: list[str], words: list[bytes], steps: bool) -> None:
    """Each such line has an entry with its template and rank, and they count all such lines."""
    if steps:
        lines = [text for n, line in enumerate(lines * 5) for text in (f"step {n} of all", line)]
    interest = Interest(words=tuple(words))
    lower = [word.lower() for word in words]
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), lines)
        page = compress([LogFile(path, labelled=False)], interest)
    wanted: dict[tuple[str, object], int] = {}
    for line in lines:
        raw = line.encode()
        prefix = read_prefix(raw)
        clean = re.sub(rb"\x1b\[[0-?]*[ -/]*[@-~]", b"", raw).lower()
        text = decoded(raw[prefix.text_at :])
        if text.strip() and any(word in raw.lower() or word in clean for word in lower):
            key = (template_of(text), read_speaker(raw, prefix).rank)
            wanted[key] = wanted.get(key, 0) + 1
    found: dict[tuple[str, object], int] = {}
    for item in page.entries:
        if item.name:
            for who in item.speakers:
                key = (item.template, who.speaker.rank)
                found[key] = found.get(key, 0) + who.count
    assert {key: found.get(key, 0) for key in wanted} == wanted
    assert page.dropped_lines == 0


def decoded(raw: bytes) -> str:
    """As a page shows it."""
    return strip_escapes(raw).decode("utf-8", "replace").rstrip()


@given(st.lists(st.text(alphabet="ab01 ", max_size=12), max_size=30))
def test_a_predicate_on_digits_loses_nothing(lines: list[str]) -> None:
    """It sees every line, and each of its answers is a name on the page."""
    with tempfile.TemporaryDirectory() as folder:
        page = page_of(Path(folder), lines, Interest(words=(), accepts=lambda line: line.count("1")))
    names = {str(line.rstrip().count("1")) for line in lines if "1" in line}
    assert {item.name for item in page.entries if item.name} == names
    assert sum(item.count for item in page.entries) == sum(1 for line in lines if line.strip())


@given(st.binary(max_size=3000), st.integers(0, 3000))
@example(b"Traceback (most recent call last):\n" * 50, 300)
@example("Traceback (most recent call last):\n".encode("utf-16"), 300)
@example(b"[rank9999999]:" * 200, 100)
def test_any_bytes_make_a_page(data: bytes, max_bytes: int) -> None:
    """And the page is never longer than it may be."""
    with tempfile.TemporaryDirectory() as folder:
        page = page_of(Path(folder), data)
    assert len(render(page, max_bytes).encode()) <= max_bytes
    assert page.sources[0].size_bytes == len(data) or data.startswith(b"\x1f\x8b")  # as gzip says it begins
    assert sum(item.count for item in page.entries) + page.routine_lines <= 3 * page.lines + 1


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"\0", b"1234567", b"\n\n"]), max_size=200))
@settings(max_examples=200)
def test_lines_do_not_depend_on_chunks(parts: list[bytes]) -> None:
    """Nor their numbers, nor their places: read in chunks of 600 bytes, and at once, and by a plain program."""
    data = b"".join(parts)
    plain, line = [], 1
    for piece in re.finditer(rb"[^\r\n]*[\r\n]|[^\r\n]+$", data):
        text = piece[0].rstrip(b"\r\n").replace(b"\0", b"")
        plain.append((text, line, piece.start()))
        line += piece[0].count(b"\n")
    found = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = written(Path(folder), data)
        patch.setattr(lines_module, "CHUNK_BYTES", 600)
        for chunk in LogReader(path).chunks():
            found += [(text, *chunk.place(index)) for index, text in enumerate(chunk.lines)]
            assert len(chunk.keys) == len(chunk.lines)
    assert [item for item in found if item[0]] == [item for item in plain if item[0]]


@given(st.integers(0, 3 * LINE_BYTES), st.integers(0, 3 * LINE_BYTES), st.sampled_from([b" ", b"x", b"7", b"ab "]))
@settings(max_examples=60)
def test_a_word_in_a_long_line_is_found(before: int, after: int, filler: bytes) -> None:
    """Wherever the pieces are cut: what is not longer than their overlap is whole in one of them."""
    word = b"NEEDLE" + b"-" * (OVERLAP_BYTES - 12) + b"NEEDLE"
    line = (filler * before)[:before] + word + (filler * after)[:after]
    with tempfile.TemporaryDirectory() as folder:
        page = page_of(Path(folder), line, Interest(words=(word,)))
    assert any(word.decode() in item.line for item in page.entries if item.name)


@given(st.lists(st.binary(min_size=1, max_size=4), max_size=8), st.binary(max_size=30))
def test_any_of_finds_what_one_after_the_other_finds(words: list[bytes], data: bytes) -> None:
    """Also words that begin alike, contain one another, or consist of a pattern's signs."""
    pattern = any_of(words)
    assert (pattern is not None and pattern.search(data) is not None) == any(word in data for word in words)


@given(st.text(alphabet="ab01239./-_:x é|#%~+", max_size=60), st.randoms(use_true_random=False))
def test_lines_that_differ_in_digits_have_one_template(line: str, dice: random.Random) -> None:
    """That is what keys rely on."""
    other = "".join(str(dice.randrange(10)) if c in "0123456789" else c for c in line)
    assert template_of(line) == template_of(other)


@pytest.mark.parametrize("seconds_for", ["template", "prefix"])
def test_no_line_takes_long(seconds_for: str) -> None:
    """Lines that are made to be hard for patterns: a piece takes well under a second."""
    work = {"template": template_of, "prefix": lambda t: read_prefix(t.encode())}[seconds_for]
    for unit in (
        "a.",
        "/a",
        "a-",
        "1.",
        "0:",
        "a@",
        "::",
        "=",
        "| ",
        "[rank",
        "~a",
        "node-",
        "x_token",
        "ab/1-",
        "\x1b[",
        "'",
    ):
        began = time.process_time()
        work((unit * LINE_BYTES)[:LINE_BYTES])
        assert time.process_time() - began < 2, unit


def test_utf16_and_latin1(tmp_path: Path) -> None:
    """NULs are left out, so that the text of UTF-16 is read; other encodings have signs for what is unknown."""
    page = page_of(tmp_path, "first\nan error occurred\n".encode("utf-16-le"))
    assert entry(page, "an error occurred").first.line == 2
    assert page_of(tmp_path, "erreur d’accès: failed\n".encode("latin-1", "replace")).entries[0].name == "word"


def test_nul_bytes_are_a_hole_in_the_file(tmp_path: Path) -> None:
    """A file that was truncated while somebody appended: the line after the hole has its offset."""
    page = page_of(tmp_path, b"one\n" + b"\0" * (3 << 20) + b"an error\n")
    found = entry(page, "an error")
    assert (found.line, found.first.line) == ("an error", 2)
    assert found.first.offset_bytes <= 4 + (3 << 20)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    """Missing, a folder, a pipe without a writer; the other files are read."""
    os.mkfifo(tmp_path / "pipe")
    paths = [tmp_path / "missing", tmp_path, tmp_path / "pipe", written(tmp_path, ["an error"])]
    page = compress([LogFile(path) for path in paths])
    problems = [source.problem for source in page.sources]
    assert "No such file" in problems[0]
    assert problems[1:] == [*["cannot be read: it is not a regular file"] * 2, ""]
    assert entry(page, "an error").first.source == 3


def test_gzip_and_a_broken_one(tmp_path: Path) -> None:
    """Rotated files are often compressed; what stands before the damage is read."""
    data = "".join(f"line {n} failed {n * n}\n" for n in range(50_000)).encode()
    whole, broken = tmp_path / "a.gz", tmp_path / "b.gz"
    whole.write_bytes(gzip.compress(data))
    broken.write_bytes(gzip.compress(data)[:-2000])
    page = compress([whole])
    assert (page.entries[0].count, page.sources[0].problem) == (50_000, "")
    page = compress([broken])
    assert page.entries[0].count > 10_000
    assert "cannot be read beyond byte" in page.sources[0].problem


def test_a_file_that_shrinks_or_grows_while_it_is_read(tmp_path: Path) -> None:
    """It is read to the end that it had, or has; a rotated one is read on under its old name."""
    path = written(tmp_path, [f"line {n} failed" for n in range(200_000)])
    reader = LogReader(path)
    chunks = reader.chunks()
    next(chunks)
    os.truncate(path, 1 << 20)
    for _ in chunks:
        pass
    assert "was truncated while it was read" in reader.problem
    path = written(tmp_path, [f"line {n} failed" for n in range(100_000)])
    size = path.stat().st_size
    reader = LogReader(path)
    for number, _ in enumerate(reader.chunks()):
        if number == 0:
            path.rename(tmp_path / "job.out.1")
        with (tmp_path / "job.out.1").open("ab") as file:
            file.write(b"more\n" * 1000)
    assert (reader.size_bytes, reader.problem) == (size, "")


MAKERS = {
    "no newline": "b'abc error 12 ' * 100_000",
    "no newline nor blank": "b'x' * 1_000_000",
    "binary": "dice.randbytes(1_000_000)",
    "tracebacks": "''.join(f'{L}{n}]: {HEAD}\\n{L}{n}]:  x\\n{L}{n}]: E: {word()}\\n' for n in range(5000)).encode()",
    "unfinished": "''.join(f'{L}{i}000{n}]: {HEAD}\\n{L}{i}000{n}]:   {long}\\n' for n in range(999)).encode()",
    "interesting lines": "''.join(f'error {word()}\\n' for n in range(8000)).encode()",
    "interesting long lines": "''.join(f'error {word() * 200}\\n' for n in range(300)).encode()",
    "news": "''.join(f'line {word()}\\n' for n in range(8000)).encode()",
    "ranks": "''.join(f'[rank{n + i * 9000}]: error {letters[n % 8:]}\\n' for n in range(9000)).encode()",
    "empty lines": "b'\\n' * 400_000",
    "wide characters": "''.join(f'error {chr(0x1f600 + i)} {chr(0x4e00 + n)}\\n' * 2 for n in range(8000)).encode()",
}
"""A part of a file; 25 of them are written, `i` is the part's number."""
PROGRAM = """
import random, resource, sys
from pathlib import Path
from slurm_robust.diagnose.log.compress import compress
from slurm_robust.diagnose.log.render import render
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
dice = random.Random(1)
LETTERS, HEAD = str.maketrans('0123456789', 'ghijklmnop'), 'Traceback (most recent call last):'
letters, long, L = 'abcdefgh', 'y' * 500, '[rank'
def word():
    return dice.randbytes(9).hex().translate(LETTERS)
path = Path(sys.argv[1])
with path.open('wb') as f:
    for i in range(25):
        f.write({part})
page = compress([path])
assert len(render(page, 9000).encode()) <= 9000
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


SLOW_KINDS = ("binary", "interesting lines", "news", "tracebacks", "wide characters")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.variant] * (kind in SLOW_KINDS)) for kind in sorted(MAKERS)]
)
def test_memory_is_bounded(kind: str, tmp_path: Path) -> None:
    """The bound holds for everything that grows without bound in the file."""
    command = [sys.executable, "-c", PROGRAM.replace("{part}", MAKERS[kind]), str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < MEMORY_BYTES >> 20


def test_one_word_does_not_push_out_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of thousands of errors, the only line with another word, or that a rule of another name accepts."""
    monkeypatch.setattr("slurm_robust.diagnose.log.compress._INTERESTING_BYTES", 1 << 20)
    names = ["".join(chr(97 + int(digit)) for digit in str(n)) for n in range(6000)]
    lines = [f"error of {name}" for name in names]
    lines[3000:3000] = ["nothing but a Stale handle", "Xid 79 fell", "error of another rule"]
    interest = Interest(words=(b"error", b"stale", b"xid 79"))
    page = page_of(tmp_path, lines, interest)
    assert page.dropped_interesting > 1000
    assert {entry(page, "Stale").count, entry(page, "Xid 79").count} == {1}
    page = page_of(tmp_path, lines, Interest(words=(b"error",), accepts=lambda t: "b" if "rule" in t else "a"))
    assert entry(page, "error of another rule").name == "b"


def test_what_came_first_and_last_is_kept_of_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first lines of a disaster and its end; how many are missing is said."""
    monkeypatch.setattr("slurm_robust.diagnose.log.compress._INTERESTING_BYTES", 1 << 20)
    monkeypatch.setattr("slurm_robust.diagnose.log.compress._TRACEBACK_BYTES", 1 << 18)
    names = ["".join(chr(97 + int(digit)) for digit in str(n)) for n in range(5000)]
    lines = [line for name in names for line in (f"error of {name}", *TRACEBACK[:-1], f"E{name}: x")]
    page = page_of(tmp_path, lines, Interest(words=(b"error of",)))
    kept = [item.line for item in page.entries if item.name]
    assert (kept[0], kept[-1]) == ("error of a", f"error of {names[-1]}")
    assert len(kept) + page.dropped_interesting == 5000
    assert (page.tracebacks[0].exception, page.tracebacks[-1].exception) == ("Ea: x", f"E{names[-1]}: x")
    assert len(page.tracebacks) + page.dropped_tracebacks == 5000
    assert "forgotten for lack of memory" in render(page)
