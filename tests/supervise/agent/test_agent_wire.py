"""The channel between agents and supervisor."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.supervise.agent.wire import LINE_MAX_BYTES, Decoder, encode

MESSAGES = st.fixed_dictionaries(
    {"t": st.text(max_size=10), "blob": st.text(max_size=5000), "n": st.integers(), "r": st.lists(st.floats(0, 1))}
)


@given(MESSAGES, st.randoms())
def test_a_message_arrives_whole_in_any_order_of_its_pieces(message: dict[str, object], rnd: random.Random) -> None:
    """Each line fits Slurm's limit, and shuffled pieces make the message again."""
    lines = list(encode("n1", 7, message))
    assert all(len(line.encode()) <= LINE_MAX_BYTES for line in lines)
    rnd.shuffle(lines)
    decoder = Decoder()
    out = [m for m in (decoder.feed(line + "\n") for line in lines) if m is not None]
    assert out == [message]
    assert decoder.skipped == 0


def test_pieces_of_several_nodes_do_not_mix() -> None:
    """The same message number from two nodes gives two messages."""
    a = list(encode("n1", 1, {"t": "cap", "blob": "a" * 3000}))
    b = list(encode("n2", 1, {"t": "cap", "blob": "b" * 3000}))
    decoder = Decoder()
    lines = [line for pair in zip(a, b, strict=True) for line in pair]
    out = [m["blob"][0] for m in (decoder.feed(line) for line in lines) if m]
    assert out == ["a", "b"]


@given(st.text(max_size=300))
def test_foreign_text_is_skipped_and_counted(text: str) -> None:
    """A banner, half a line, a message of the program itself: never an error, never a message."""
    decoder = Decoder()
    for prefix in ("", "~SR1 ", "~SRP1 ", "~SRP1 n1 1 0 2 "):
        line = prefix + text
        message = decoder.feed(line)
        assert message is None or isinstance(message["t"], str)
    assert decoder.skipped >= 1


def test_a_piece_count_out_of_bounds_is_skipped() -> None:
    """A garbled header cannot make the supervisor hold memory for a million pieces."""
    decoder = Decoder()
    assert decoder.feed("~SRP1 n1 1 5 3 x") is None
    assert decoder.feed("~SRP1 n1 1 0 99999999 x") is None
    assert decoder.skipped == 2
