"""The file of a node's findings: what is kept, what is believed, and whom it is believed of."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.marks.node_findings import (
    FILE_NAME,
    MAX_BYTES,
    MAX_FINDINGS,
    NodeFinding,
    UntrustedRingError,
    boot_id,
    decode,
    encode,
    read,
)

ME = (os.geteuid(),)
XID = NodeFinding(7, 1e9, "kmsg", "xid", "now", "GPU 3 has fallen off the bus (XID 79)", (3,), "", 79)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder that only its owner can write to."""
    made = tmp_path / "state"
    made.mkdir(mode=0o755)
    made.chmod(0o755)
    return made


def put(folder: Path, body: bytes, mode: int = 0o644) -> Path:
    """The file, with this mode."""
    path = folder / FILE_NAME
    path.write_bytes(body)
    path.chmod(mode)
    return path


words = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)


@given(
    st.lists(
        st.builds(
            NodeFinding,
            seq=st.integers(0, 2**40),
            at_s=st.floats(0, 2e9),
            source=words,
            kind=words,
            urgency=st.sampled_from(("now", "if_repeated", "at_next_checkpoint", "note")),
            text=words,
            gpus=st.lists(st.integers(0, 31), max_size=8).map(tuple),
            port=words,
            code=st.none() | st.integers(0, 200),
        ),
        max_size=20,
    )
)
def test_what_was_written_is_read(findings: list[NodeFinding]) -> None:
    """Whole and in order, of the same boot; of another boot nothing."""
    assert decode(encode(findings, "b"), "b") == findings
    assert decode(encode(findings, "b"), "c") == []


@given(st.binary(max_size=400))
def test_any_bytes_are_read_without_a_fault(body: bytes) -> None:
    """Garbage behind a right header costs no finding that stands there."""
    whole = encode([XID], "b") + body.replace(b"\n", b" ") + b"\n"
    assert decode(whole, "b")[0] == XID
    decode(body, "b")


def test_it_is_bounded() -> None:
    """The newest findings count, in number and in bytes."""
    many = [XID._replace(seq=n, text="x" * 4000) for n in range(10_000)]
    body = encode(many, "b")
    assert len(body) <= MAX_BYTES
    kept = decode(body, "b")
    assert len(kept) <= MAX_FINDINGS
    assert kept[-1].seq == 9_999


@pytest.mark.parametrize(
    "change",
    [
        {"seq": -1}, {"seq": "7"}, {"at_s": "now"}, {"at_s": True}, {"at_s": 10**400}, {"urgency": "fatal"},
        {"text": None}, {"gpus": "3"}, {"gpus": [-1]}, {"gpus": list(range(100))}, {"kind": "x" * 100},
        {"port": "a\u0007"}, {"code": []},
    ],
)  # fmt: skip
def test_a_line_that_is_wrong_is_skipped(change: dict[str, object]) -> None:
    """The others count."""
    header, line = encode([XID], "b").splitlines()
    wrong = json.dumps({**json.loads(line), **change}).encode()
    assert decode(b"\n".join([header, wrong, line]), "b") == [XID]


def test_no_file_is_no_finding(folder: Path) -> None:
    """Most nodes have no service yet."""
    assert read(str(folder), "b", ME) == []
    assert read(str(folder / "absent"), "b", ME) == []


def test_a_file_of_the_services_is_believed(folder: Path) -> None:
    """Owned by root (here: by us), and writable by nobody else."""
    put(folder, encode([XID], "b"))
    assert read(str(folder), "b", ME) == [XID]
    assert boot_id()


def test_what_others_could_have_written_is_refused(folder: Path, tmp_path: Path) -> None:
    """Another owner, a file or folder that others may write, a link, and what is no plain file: said, and not read."""
    path = put(folder, encode([XID], "b"), 0o664)
    with pytest.raises(UntrustedRingError, match="writable by others"):
        read(str(folder), "b", ME)
    path.chmod(0o644)
    with pytest.raises(UntrustedRingError, match="owned by user"):
        read(str(folder), "b", (4711,))
    folder.chmod(0o777)
    with pytest.raises(UntrustedRingError, match="writable by others"):
        read(str(folder), "b", ME)
    folder.chmod(0o755)
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(elsewhere)
    with pytest.raises(UntrustedRingError, match=FILE_NAME):
        read(str(folder), "b", ME)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UntrustedRingError, match="not a plain file"):
        read(str(folder), "b", ME)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(UntrustedRingError, match="link"):
        read(str(link), "b", ME)
