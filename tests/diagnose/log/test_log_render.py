"""A page as text: what it shows first, how long it is, and what leaves the machine."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_material import TRACEBACK, healthy, page_of

from slurm_robust.diagnose.log.masking import Masker
from slurm_robust.diagnose.log.page import Page, PageEntry, PageTraceback, Place, Speaker, SpeakerLines
from slurm_robust.diagnose.log.render import render

AT = Place(0, 1, 0)
SECRETS = (
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "sk-proj-abcdefghijklmnopqrstuvwx",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcDEF_123",
    "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY9",
    "0123456789abcdef0123456789abcdef01234567",
)


def test_the_most_telling_stays(tmp_path: Path) -> None:
    """In 700 bytes: the traceback and the last step, in order of time; not the chatter."""
    chatter = [f"chatter of {chr(97 + n)} kind" for n in range(26)]
    page = page_of(tmp_path, [*chatter, *healthy(50), *(f"[rank3]: {line}" for line in TRACEBACK)])
    text = render(page, 900, masked=False)
    assert TRACEBACK[-1] in text
    assert "rank 3" in text
    assert text.index("step 50 loss") < text.index("illegal memory access")
    assert text.index("chatter of a") < text.index("step 50 loss")
    assert "chatter of z" not in text
    assert "entries are left out" in text
    assert "chatter of z" in render(page, masked=False)


def test_ranks_and_numbers_are_told(tmp_path: Path) -> None:
    """Of many ranks the first ones, and how many there are."""
    text = render(page_of(tmp_path, [f"[rank{n}]: it failed" for n in range(12)]), masked=False)
    assert "rank 0, rank 1," in text
    assert "and 4 more ×12" in text


def page_with(line: str) -> Page:
    """An entry and a traceback with this line."""
    speakers = (SpeakerLines(Speaker(rank=0), 1, AT, AT),)
    entry = PageEntry(line, line, f"{line} x", "word", speakers, 1, AT, AT)
    return Page((entry,), (PageTraceback((*TRACEBACK[:-1], f"ValueError: {line}"), speakers, 1, AT, AT),))


@given(st.text(max_size=300), st.integers(0, 2000), st.booleans())
def test_it_is_never_too_long(line: str, max_bytes: int, masked: bool) -> None:
    """Not even by a byte, whatever the letters."""
    text = render(page_with(line.encode("utf-8", "replace").decode()), max_bytes, masked=masked)
    assert len(text.encode()) <= max_bytes


NAMES = st.text(alphabet=string.ascii_lowercase, min_size=5, max_size=12).map(lambda name: f"q{name}q")
OCTETS = st.integers(0, 255)


@given(
    st.one_of(
        st.sampled_from(SECRETS),
        NAMES.map(lambda n: f"{n}@{n}.example.org"),
        st.tuples(OCTETS, OCTETS, OCTETS, OCTETS).map(lambda ip: ".".join(map(str, ip))),
        NAMES.map(lambda n: f"{n}.cluster.example.com"),
        NAMES.map(lambda n: f"{n}-node017"),
        st.sampled_from(["fe80::1ff:fe23:4567:890a", "2001:db8:0:1:2:3:4:5", "00:1a:2b:3c:4d:5e"]),
    ),
    st.sampled_from(["{}", "at {}: failed", "[{}]:", "({})", "'{}'", 'x="{}"', "peer {}:29500 closed", "got {}, ok"]),
)
def test_what_is_told_by_its_form_does_not_leave(secret: str, around: str) -> None:
    """Tokens, keys, mail and network addresses, hosts: wherever they stand in a line."""
    assert secret not in render(page_with(around.format(secret)))


@given(
    st.text(alphabet=string.ascii_letters + string.digits + "!$%^*_+-", min_size=1, max_size=30).map(
        lambda s: f"Zq{s}"
    ),
    st.sampled_from(
        [
            "password={}",
            "WANDB_API_KEY: {}",
            '"secret_key": "{}",',
            "--hf-token {}",
            "Authorization: Bearer {}",
            "https://alice:{}@registry/x",
            "aws_secret_access_key = '{}'",
            "token is {}",
            "s3://{}@bucket/key",
        ]
    ),
)
def test_what_is_told_by_its_name_does_not_leave(secret: str, around: str) -> None:
    """Passwords have no form of their own."""
    assert secret not in render(page_with(around.format(secret)))


@given(
    NAMES, st.sampled_from(["/home/{}/x.py", "/Users/{}", "/data/home/{}/a/b", "~{}/x", 'File "/home/{}/t.py", line 3'])
)
def test_home_directories_do_not_leave(user: str, around: str) -> None:
    """The user's name is in them; what stands below it stays."""
    text = render(page_with(around.format(user)))
    assert user not in text
    assert "x.py" in text or "x.py" not in around


@given(NAMES, st.sampled_from(["{} is silent", "node={}", "lost {}.", "[{}] x", "srun: error: {}: task 3: Killed"]))
def test_known_hosts_do_not_leave(host: str, around: str) -> None:
    """Whatever they look like, where the caller names them; each has a number."""
    text = render(page_with(around.format(host)), hosts=[host])
    assert host not in text
    assert "<host 1>" in text


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "torch.distributed.DistBackendError: NCCL error in ProcessGroupNCCL.cpp:1970, unhandled system error",
        "step 1200 loss 2.345 tokens/s 12345.6 lr 1.2e-05",
        'File "/opt/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 114, in forward',
        "torch.OutOfMemoryError: Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB",
        "[rank3]: srun: error: task 17: Segmentation fault (core dumped)",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=600000)",
    ],
)
def test_what_tells_the_cause_stays(line: str) -> None:
    """Masking leaves errors, versions of nothing, numbers and modules alone."""
    assert Masker().mask(line) == line


def test_hosts_keep_their_numbers() -> None:
    """The same host has the same number on a page."""
    masker = Masker(["n1", "n12"])
    assert masker.mask("n1 n12 n1 n123") == "<host 1> <host 2> <host 1> n123"
    assert masker.mask("n12: x") == "<host 2>: x"
