"""Hole 14: a file of some hundred bytes that a rank left makes no reader take the node's memory or time."""

from __future__ import annotations

import io
import json
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint.formats import torchfile
from slurm_robust.localize.recorder import dump as recorder_dump
from slurm_robust.wire.plain_pickle import MAX_DEPTH, BoundedUnpickler, written_size

LIMIT_BYTES = 1 << 30
READERS = {
    "judge": (
        "from slurm_robust.localize.recorder.dump import RecorderDumpError, read_dump\n"
        "try: read_dump(body, 0)\nexcept RecorderDumpError as error: print(str(error)[:200])"
    ),
    "agent": (
        "import io\nfrom slurm_robust.supervise.agent import recorder\n"
        "sys.stdin = io.TextIOWrapper(io.BytesIO(body))\nrecorder.main()"
    ),
    "checkpoint": (
        "import io\nfrom slurm_robust.checkpoint.formats import torchfile\n"
        "content = torchfile.read(io.BytesIO(body), whole=True)\n"
        "print(torchfile.tensors(content), content.problems) if content else print('none')"
    ),
}


def doubled(times: int, first: bytes) -> bytes:
    """Opcodes that leave a tuple which holds `first` 2**times times, by references."""
    return first + b"".join(
        b"r" + struct.pack("<I", n) + b"0" + (b"j" + struct.pack("<I", n)) * 2 + b"\x86" for n in range(times)
    )


def word(text: str) -> bytes:
    """A short string's opcodes."""
    return b"\x8c" + bytes([len(text)]) + text.encode()


def dump(**fields: bytes) -> bytes:
    """A pickle of a dump with one entry, which has these fields."""
    known = {
        "process_group": b"]" + word("0") + b"a",
        "pg_id": b"K\0",
        "record_id": b"K\0",
        "collective_seq_id": b"K\1",
        "p2p_seq_id": b"K\0",
        "profiling_name": word("nccl:all_reduce"),
        "state": word("scheduled"),
    }
    entry = b"}(" + b"".join(word(key) + value for key, value in {**known, **fields}.items()) + b"u"
    return b"\x80\x04}" + word("entries") + b"]" + entry + b"as."


def as_torch(pickled: bytes, times: int = 1, how: int = zipfile.ZIP_STORED) -> bytes:
    """A file of `torch.save` with this pickle, which stands there so often."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive, archive.open("archive/data.pkl", "w") as record:
        for _ in range(times):
            record.write(pickled)
    return out.getvalue()


def storage_of(key: bytes) -> bytes:
    """A pickle whose tensor's storage has this key."""
    kind = word("torch") + word("FloatStorage") + b"\x93"
    return b"\x80\x04(" + word("storage") + kind + key + word("cpu") + b"K\1tQ."


ENDLESS = doubled(60, word("x"))
RANGES = {str(n): {"ranges": [[n, n + (1 << 20) - 2, 1]]} for n in range(12)}
BOMBS = {
    "shape": dump(input_sizes=ENDLESS),
    "name": dump(profiling_name=ENDLESS),
    "group": dump(process_group=b"]" + ENDLESS + b"a"),
    "key": b"\x80\x04}" + ENDLESS + b"Ns.",
    "keys": b"\x80\x04}(" + ENDLESS + b"Nu.",
    "old dict": b"\x80\x04(" + ENDLESS + b"Nd.",
    "member": b"\x80\x04\x8f(" + ENDLESS + b"\x90.",
    "frozen": b"\x80\x04(" + ENDLESS + b"\x91.",
    "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 42) + b".",
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 42) + b".",
    "text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 42) + b".",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 42) + b"N.",
    "memo": b"\x80\x04Nr\xff\xff\xff\x7f.",
    "itself": b"\x80\x04}" + word("entries") + b"]q\0h\0as.",
    "ranks": json.dumps({"entries": [], "pg_config": RANGES}).encode(),
    "deep": b'{"entries":' + b"[" * 100_000,
}


def read_apart(reader: str, body: bytes, path: Path) -> subprocess.CompletedProcess[str]:
    """What this reader says, in a process that has 1 GiB and ten seconds."""
    path.write_bytes(body)
    limit = f"import resource, sys\nresource.setrlimit(resource.RLIMIT_AS, ({LIMIT_BYTES}, {LIMIT_BYTES}))\n"
    measure = "\nprint(int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]) >> 10, 'MiB')"
    code = limit + f"body = open({str(path)!r}, 'rb').read()\n" + READERS[reader] + measure
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=10, check=False)


@pytest.mark.parametrize("name", [*BOMBS])
def test_a_dump_that_is_a_bomb_is_refused(name: str, tmp_path: Path) -> None:
    """The judge says why it is no dump, in memory of an ordinary size."""
    assert len(BOMBS[name]) < 2000 or name == "deep"
    done = read_apart("judge", BOMBS[name], tmp_path / "dump_0")
    *said, memory = done.stdout.splitlines() or [""]
    assert done.returncode == 0, done.stderr[-500:]
    assert said
    assert "MemoryError" not in said[0]
    assert int(memory.split()[0]) < 300, memory


@pytest.mark.parametrize("name", ["shape", "name", "bytearray", "memo"])
def test_an_agent_gets_a_sentence(name: str, tmp_path: Path) -> None:
    """The process that reads for the agent ends with a short sentence, and sends nothing on."""
    done = read_apart("agent", BOMBS[name], tmp_path / "dump_0")
    assert done.returncode == 1
    assert "not a flight-recorder dump" in done.stderr
    assert len(done.stdout) + len(done.stderr) < 1000


@pytest.mark.parametrize("how", ["key", "old", "packed", "bytearray", "member"])
def test_a_checkpoint_that_is_a_bomb_is_refused(how: str, tmp_path: Path) -> None:
    """A checkpoint's pickle is looked at in memory and time of an ordinary size."""
    bodies = {
        "key": as_torch(storage_of(ENDLESS)),
        "old": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"\x80\x02M\xe9\x03." * 2 + storage_of(ENDLESS) + b"].",
        "packed": as_torch(b"\0" * (1 << 20), 300, zipfile.ZIP_DEFLATED) if how == "packed" else b"",
        "bytearray": as_torch(BOMBS["bytearray"]),
        "member": as_torch(BOMBS["member"]),
    }
    done = read_apart("checkpoint", bodies[how], tmp_path / "model.pt")
    assert done.returncode == 0, done.stderr[-500:]
    *_, memory = done.stdout.splitlines()
    assert int(memory.split()[0]) < 300, memory


def test_a_large_plain_pickle_is_no_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch packs nothing: what really is in the file, a data loader's indices for example, is read, however large."""
    monkeypatch.setattr(torchfile, "MAX_PICKLE_BYTES", 1000)
    pickled = pickle.dumps({"indices": list(range(5000))}, protocol=2)
    for how, problems in ((zipfile.ZIP_STORED, 0), (zipfile.ZIP_DEFLATED, 1)):
        content = torchfile.read(io.BytesIO(as_torch(pickled, how=how)), whole=True)
        assert content is not None
        assert len(content.problems) == problems, content.problems


def test_a_large_dump_of_many_tensors_is_no_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has up to twice as many characters as its file has bytes, since a type's name is written once."""
    monkeypatch.setattr(recorder_dump, "MAX_WRITTEN", 1000)
    kinds = b"](" + word("BFloat16") + b"q\x01" + b"h\x01" * 999 + b"e"
    sizes = b"](" + b"](M\0\x20e" * 1000 + b"e"
    body = dump(input_dtypes=kinds, input_sizes=sizes)
    assert len(recorder_dump.read_dump(body, 0).pending) == 1


class _Plain(BoundedUnpickler):
    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"{module}.{name}")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = SCALARS | st.tuples(SCALARS, SCALARS) | st.frozensets(SCALARS)
VALUES = st.recursive(
    SCALARS | st.builds(bytearray, st.binary()) | st.sets(KEYS),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)


@given(VALUES, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_a_plain_pickle_is_read_as_ever(value: object, protocol: int) -> None:
    """What is no bomb comes out as it went in."""
    body = pickle.dumps(value, protocol)
    if b"builtins" not in body and b"_codecs" not in body and b"copyreg" not in body and b"__builtin__" not in body:
        assert _Plain(io.BytesIO(body)).load() == value


@given(VALUES)
def test_written_sizes_bound_the_text(value: object) -> None:
    """What may be written out is at most a few times as long as is counted."""
    assert len(repr(value)) <= 30 * written_size(value, 1 << 20)


def test_a_value_deeper_than_any_dump_is_refused() -> None:
    """It would end the interpreter's stack later."""
    value: list[object] = []
    for _ in range(MAX_DEPTH + 2):
        value = [value]
    with pytest.raises(ValueError, match="nested"):
        written_size(value, 1 << 20)
