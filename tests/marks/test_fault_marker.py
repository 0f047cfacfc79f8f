"""The fault marker: what is written is read again, other text stays, and nothing in the field can break the reader."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.marks.fault_marker import (
    CLOCKS_DIFFER_S,
    MAX_AGE_S,
    MAX_SENTENCE_CHARS,
    FaultMarker,
    fresh,
    joined,
    marked,
    parse,
    render,
    without,
)

MARKER = FaultMarker(1_790_000_000, "xid", (0, 1), "XID 79: GPU has fallen off the bus")
TEXT = "[[srobust-fault v=1 at=1790000000 kind=xid gpus=0,1 : XID 79: GPU has fallen off the bus]]"
MARKERS = st.builds(
    FaultMarker,
    st.integers(0, 999_999_999_999),
    st.from_regex(r"[a-z0-9_]{1,32}", fullmatch=True),
    st.lists(st.integers(0, 9999), max_size=64, unique=True).map(lambda gpus: tuple(sorted(gpus))),
    st.from_regex(r"[!-Z^-~](?:[ -Z^-~]{0,100}[!-Z^-~])?", fullmatch=True).map(lambda text: " ".join(text.split())),
    st.sampled_from(["", "reboot", "gpu_reset"]),
    st.booleans(),
)
PEOPLES = st.text(
    st.characters(min_codepoint=32, blacklist_characters="[]", blacklist_categories=["Cs", "C", "Z"])
).map(str.strip)


def test_the_marker_as_it_stands_in_slurm() -> None:
    """Written and read; on a node without GPUs that are named, it is the whole node."""
    assert render(MARKER) == TEXT
    assert parse(TEXT) == MARKER
    assert render(MARKER._replace(gpus=())) == TEXT.replace(" gpus=0,1", "")
    assert parse(render(MARKER._replace(gpus=()))) == MARKER._replace(gpus=())


@given(MARKERS, PEOPLES, MARKERS)
def test_what_is_written_is_read_and_a_persons_text_stays(marker: FaultMarker, text: str, other: FaultMarker) -> None:
    """Also where another marker stood there."""
    written = render(marker, f"{text} {TEXT}")
    assert parse(written) == marker
    assert without(written) == without(render(other, written)) == text
    assert written.isprintable()
    assert marked(written)
    assert not marked(without(written))


@given(st.text(max_size=300) | st.text(max_size=80).map(lambda text: f"[[srobust-fault v=1 at=1 kind=x : {text}]]"))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Whatever stands in the field, the reader gives a bounded marker or none."""
    found = parse(text)
    if found is not None:
        assert len(found.sentence) <= MAX_SENTENCE_CHARS
        assert found.sentence.isprintable()
    assert parse(without(text)) is None or "[[" in without(text)


@given(st.text(max_size=400), st.text(max_size=80))
def test_any_sentence_and_kind_make_a_marker(sentence: str, kind: str) -> None:
    """Brackets, line ends and control characters of a message do not end the marker early."""
    written = render(MARKER._replace(sentence=sentence, kind=kind))
    found = parse(written)
    assert found is not None
    assert written.isascii()
    assert without(written) == ""


def test_a_marker_of_another_version_is_no_marker_and_is_removed() -> None:
    """So is one that somebody has damaged."""
    for text in ("[[srobust-fault v=2 at=1 kind=x : y]]", "[[srobust-fault at=x]]", "[[srobust-fault]]"):
        assert parse(text) is None
        assert marked(text)
        assert without(f"rack 7 {text}") == "rack 7"


def test_two_faults_of_a_node_are_one_marker() -> None:
    """The newer one's words, and all GPUs; where one of them is about the whole node, both are."""
    later = FaultMarker(MARKER.at_s + 9, "gpu_ecc", (3,), "GPU 3 is broken")
    assert joined(later, MARKER) == later._replace(gpus=(0, 1, 3))
    assert joined(MARKER, later) == later._replace(gpus=(0, 1, 3))
    assert joined(later._replace(gpus=()), MARKER).gpus == ()
    assert joined(MARKER, None) == MARKER
    mild = later._replace(spares_jobs=True)
    assert joined(mild, MARKER) == joined(MARKER, mild) == MARKER
    assert joined(mild, MARKER._replace(spares_jobs=True)).spares_jobs


def test_a_fault_of_the_node_beside_one_of_a_gpu_concerns_jobs_without_gpus() -> None:
    """Whichever came first, the marker has the kind of the fault that concerns all jobs."""
    disk = FaultMarker(1_790_000_005, "disk_lost", (), "sda is gone")
    later = MARKER._replace(at_s=disk.at_s + 5)
    for new, old in ((disk, MARKER), (MARKER, disk), (later, disk), (disk, later)):
        both = joined(new, old)
        assert (both.kind, both.gpus, both.about_gpus) == ("disk_lost", (), False)
    assert joined(later, MARKER).about_gpus


def test_a_text_with_control_characters_can_be_written_again() -> None:
    """Slurm takes no line with one: the marker could neither be written nor removed."""
    written = render(MARKER, "rack 7\tshelf 2\x1b")
    assert written == f"rack 7 shelf 2 {TEXT}"
    assert without(f"rack 7\tshelf 2 {TEXT}") == "rack 7 shelf 2"


def test_old_markers_and_those_of_another_boot_are_not_fresh() -> None:
    """One that lies in the future comes from a clock that is ahead: it counts from when it was seen first."""
    at_s = float(MARKER.at_s)
    assert fresh(MARKER, at_s + 5, at_s - 1000, at_s + 5)
    assert fresh(MARKER, at_s - 300, at_s - 1000, at_s - 300)
    assert not fresh(MARKER, at_s + 1, at_s - 1000, at_s - MAX_AGE_S)
    assert not fresh(MARKER, at_s + MAX_AGE_S + 1, 0, at_s + MAX_AGE_S + 1)
    assert not fresh(MARKER, at_s + 200, at_s + CLOCKS_DIFFER_S + 1, at_s + 200)
