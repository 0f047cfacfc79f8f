import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.localize.evidence import CapturedThread
from slurm_robust.localize.stacks.frames import main_thread, short_file, short_function
from slurm_robust.localize.stacks.pyspy import PySpyDumpError, parse, parse_json, parse_text

VICTIM = """
import threading
def wait_in_a_thread(event): event.wait()
def outer(): inner()
def inner():
    print("ready", flush=True)
    lock.acquire()
lock = threading.Lock(); lock.acquire()
threading.Thread(target=wait_in_a_thread, args=(threading.Event(),), name="side (1)", daemon=True).start()
outer()
"""


@contextlib.contextmanager
def victim(folder: Path) -> Iterator[int]:
    """A tiny program that waits for ever in a known place; gives its pid."""
    script = folder / "victim.py"
    script.write_text(VICTIM)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def dump(pid: int, *options: str) -> str:
    """py-spy's output for a process."""
    spy = Path(sys.executable).with_name("py-spy")
    done = subprocess.run(
        [str(spy), "dump", "--nonblocking", *options, "--pid", str(pid)], capture_output=True, text=True, check=True
    )
    return done.stdout


def shape(threads: tuple[CapturedThread, ...]) -> list[tuple[str, bool, list[tuple[str, str, int]]]]:
    """What both forms must agree on."""
    return sorted(
        (t.name, t.main, [(short_function(f.function), short_file(f.file).split("/")[-1], f.line) for f in t.frames])
        for t in threads
    )


def test_both_forms_of_a_real_dump(tmp_path: Path) -> None:
    """JSON and text of one process give the same threads; outermost first; the main thread is known."""
    with victim(tmp_path) as pid:
        text, as_json = dump(pid), dump(pid, "--json")
    threads = parse(as_json)
    assert shape(parse(text)) == shape(threads)
    main = main_thread(threads)
    assert main is not None
    assert main.os_thread_id == pid
    assert [short_function(f.function) for f in main.frames] == ["<module>", "outer", "inner"]
    assert {t.name for t in threads} == {"MainThread", "side (1)"}


def test_text_with_words_around_it() -> None:
    """A ticket's quotation, a thread without a name, states, native frames and files without lines."""
    text = (
        "I ran py-spy and got:\n"
        "Process 7: python -u train.py --x (y)\nPython v3.10.4 (/usr/bin/python3.10)\n\n"
        'Thread 0x7F5A1C (active+gil): "MainThread"\n'
        "    forward (model.py:12)\n"
        "        Arguments:\n            self: <Net at 0x7f>\n"
        "    0x7f12 (libc.so.6)\n"
        "    <module> (train.py:3)\n"
        "Thread 12 (idle)\n    wait (threading.py:312)\n"
        "and then it hung\n"
    )
    first, second = parse_text(text)
    assert [f.function for f in first.frames] == ["<module>", "0x7f12", "forward"]
    assert (first.main, first.active, first.owns_gil) == (True, True, True)
    assert (second.main, second.active, second.os_thread_id) == (False, False, 12)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "not JSON"),
        ('{"a": 1}', "not a list"),
        ("[1]", "without frames"),
        ('[{"frames": [1]}]', "not an object"),
        ("Error: Permission denied", "no line"),
        ("", "no line"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_not_a_dump(text: str, says: str) -> None:
    """Each wrong shape is a sentence."""
    with pytest.raises(PySpyDumpError, match=says):
        parse(text)


@given(st.text(max_size=400))
def test_any_text(text: str) -> None:
    """Whatever comes, it is a `DumpError` or threads."""
    with contextlib.suppress(PySpyDumpError):
        assert parse_text(text)


KEYS = st.sampled_from(["frames", "name", "filename", "line", "os_thread_id", "pid", "thread_name"])
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20))
def test_any_json(value: object) -> None:
    """JSON of another shape is a `DumpError`, never another exception."""
    with contextlib.suppress(PySpyDumpError):
        parse_json(json.dumps([value]))
