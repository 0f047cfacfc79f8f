from __future__ import annotations

import re
import string
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slurm_robust.diagnose.findings import Matcher
from slurm_robust.diagnose.rulebook import shipped
from slurm_robust.hint.masking import clean, mask, mask_lines

WORDS = st.text(alphabet=string.ascii_letters + string.digits, min_size=12, max_size=40)
TOKENS = st.text(alphabet=string.ascii_letters + string.digits + "_-", min_size=24, max_size=60)
SECRETS = ["PASSWORD={}", 'api_key: "{}"', "Authorization: Bearer {}", "OPENAI_KEY={}", "--token {}", "DB_PASSWD='{}'",
           "secret = {}", "https://bob:{}@git.example.org/x", "aws_secret_access_key={}",
           '{{"hf_token": "{}", "n": 3}}',
           "hf_{}x0123456", "Bearer {}", "https://s3.example.com/b?X-Amz-Signature={}", "ghp_{}0123456789"]  # fmt: skip


@given(st.sampled_from(SECRETS), WORDS)
def test_what_is_called_a_secret_never_stays(template: str, secret: str) -> None:
    """Whatever it looks like, and wherever in the line it stands."""
    assert secret not in mask(f"[rank3]: step 7 {template.format(secret)}")


@given(TOKENS)
def test_long_random_words_never_stay(token: str) -> None:
    """Keys that nothing announces: those with four digits or more among letters."""
    assume(sum(char.isdigit() for char in token) >= 4 and any(char.isalpha() for char in token))
    assume(token[0].isalnum())
    assert token not in mask(f"using {token} for the run")


@pytest.mark.parametrize(
    "key",
    ["wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY9", "AKIAIOSFODNN7EXAMPLE", "0123456789abcdef0123456789abcdef01234567"],
)
def test_keys_of_services_never_stay(key: str) -> None:
    """Those in their documentation: one has a single digit."""
    assert key not in mask(f"at {key}: failed")


@given(st.ip_addresses(v=4).map(str), st.sampled_from(["peer {}<54321>", "tcp://{}:29500", "({})", "[{}]:53", "to {}"]))
def test_addresses_never_stay(address: str, template: str) -> None:
    """IPv4, with ports as programs write them."""
    assert address not in mask(template.format(address))


@given(st.ip_addresses(v=6).map(str))
def test_addresses_of_version_six_never_stay(address: str) -> None:
    """Also shortened; `::` alone is C++."""
    assume(address != "::")
    assert address not in mask(f"localGid {address} remote")


@given(
    st.from_regex(r"[a-z]{3,10}[0-9]?", fullmatch=True),
    st.sampled_from(["/home/{}/x.py", "/lustre/users/{}", "~{}/run"]),
)
def test_a_home_directory_tells_no_name_and_masks_it_everywhere(user: str, template: str) -> None:
    """Once seen in a path, the name goes from all other lines as well."""
    assume(user not in ("root", "host", "path", "name", "users", "user", "the", "key", "secret", "default"))
    assume(user not in ("none", "null", "true", "false", "unknown", "localhost", "email", "mac"))
    masked = mask_lines([f"open {template.format(user)} failed", f"job of {user}: 12"])
    assert masked[1] in ("job of <name>: 12", "job of <host>: 12")
    shown = re.sub(r"<\w+>|open|failed|run|x\.py", "", masked[0])
    assert user not in shown


PIECES = ["/", ":", "=", ".", "@", "~", "<", ">", "-", "'", '"', " ", "a", "B", "7", "password", "token", "host",
          "home", "n1", "://", "com", "on node ", "secret", "1.2.3.4", "::", "Bearer ", "user",
          "[", "]", "_", "key"]  # fmt: skip


@given(st.lists(st.text(max_size=300) | st.lists(st.sampled_from(PIECES), max_size=25).map("".join), max_size=5))
def test_any_text_can_be_masked(lines: list[str]) -> None:
    """No exception, as many lines as before, and no line end that was not there."""
    masked = mask_lines(lines)
    assert len(masked) == len(lines)
    for before, after in zip(lines, masked, strict=True):
        assert len(after.splitlines()) <= max(1, len(before.splitlines()))


def test_masking_a_second_time_changes_nothing_more() -> None:
    """Of the lines that rules are shown with: what a model repeats of them is masked again."""
    for line in [line for rule in shipped().rules for line in rule.examples]:
        assert mask(mask(line)) == mask(line)


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ("*** JOB 123 ON n1 CANCELLED AT", "*** JOB 123 ON <host> CANCELLED AT"),
        ("srun: error: n7: task 3: Exited", "srun: error: <host>: task 3: Exited"),
        ("failed on node gpu-17", "failed on node <host>"),
        ("Feb  2 03:04:05 falcon kernel: oom", "Feb  2 03:04:05 <host> kernel: oom"),
        ("mail to a.b@c.example.org", "mail to <email>"),
        ("link aa:bb:cc:dd:ee:ff down", "link <mac> down"),
        ("gid ::ffff:10.0.3.7 is", "gid ::ffff:<ip> is"),
        ("ssh login.cluster.example.edu", "ssh <host>"),
        ("'/scratch/exp1/model.pt'", "'<path>/model.pt'"),
        ("-----BEGIN PRIVATE KEY-----\\nMIIE\\n-----END PRIVATE KEY-----", "<key>"),
    ],
)
def test_what_is_private_is_replaced(line: str, masked: str) -> None:
    """Hosts where Slurm and syslog name them, people, keys and paths."""
    assert mask(line) == masked


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        "WorkNCCL(SeqNum=91, OpType=ALLREDUCE, Timeout(ms)=1800000)",
        "torch.nn.functional.cross_entropy ProcessGroupNCCL::WorkNCCL cudaErrorIllegalAddress",
        "num tokens: 1024, signal: 15, author: us, tokenizer: bpe",
        "c10::Error: ../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex",
        "/dev/shm is full; /usr/lib/libcuda.so.1",
    ],
)
def test_what_tells_the_failure_stays(line: str) -> None:
    """Names of errors, functions, libraries and devices."""
    assert mask(line) == line


def test_a_key_of_several_lines_is_masked_also_without_its_beginning() -> None:
    """A block between its marks, and one that begins before the first line."""
    block = ["-----BEGIN RSA PRIVATE KEY-----", "MIIEpAIB", "abcdefgh", "-----END RSA PRIVATE KEY-----", "step 1"]
    assert mask_lines(block) == ["<key>"] * 4 + ["step 1"]
    assert mask_lines(["step", "", *block[1:]]) == ["step", "", "<key>", "<key>", "<key>", "step 1"]


def test_names_that_are_given_are_masked_wherever_they_stand() -> None:
    """This machine's and its user's; parts of other words stay."""
    masked = mask("falcon: falconry by ann_run Falcon.x", ["falcon", "ann"])
    assert masked == "<name>: falconry by <name>_run <name>.x"


def test_rules_still_recognise_most_of_what_is_masked() -> None:
    """Masking takes little of what tells a failure: of all rules' examples one or two are not recognised any more."""
    book = shipped()
    matcher = Matcher(book)
    lines = [(rule, line) for rule in book.rules for line in rule.examples]
    lost = [line for rule, line in lines if matcher.match(mask(line)) is not rule]
    assert len(lost) <= 0.02 * len(lines), lost


def test_text_of_others_is_shown_on_one_line_without_control_characters() -> None:
    """Colours, bells, line ends and what reverses the text's direction."""
    assert clean("a\x1b[31mb\n\x07c\u202ed", 80) == "a [31mb c d"
    assert len(clean("x " * 5000, 100)) <= 100


@pytest.mark.parametrize(
    "piece",
    ["a", "/a", "a.", ":", "1.", "password ", "token=", "a@", "-----BEGIN A-----", "://", "a1", "ab-", "~a/", "f:",
     "host ", "-a", "--", "12:34:56 ", "[", "'", "user= ", "eyJ", "/home/a", "on node "],
)  # fmt: skip
def test_no_line_takes_long(piece: str) -> None:
    """Also one that is made for it: as long as a line may be, of one piece that a pattern begins with."""
    line = (piece * 2000)[:2000]
    began_s = time.process_time()
    mask_lines([line] * 10)
    assert time.process_time() - began_s < 1.0
