from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from spank_build import SPANK, make, need_compiler

from slurm_robust.doctor import plugin
from slurm_robust.doctor.advice import Advice, Severity

SAID = {
    "PlugStackConfig": "/etc/slurm/plugstack.conf",
    "PluginDir": "/usr/lib/a:/usr/lib/slurm",
    "SLURM_VERSION": "22.05.8",
}


def library(version: int) -> bytes:
    """The least of an ELF file that exports `plugin_version`."""
    names = b"\0other\0plugin_version\0"
    symbols = b"".join(
        struct.pack("<IBBHQQ", name, 0, 0, 1, address, 4) for name, address in ((1, 0x2000), (7, 0x2004))
    )
    head = struct.calcsize("<16sHHIQQQIHHHHHH")
    program_at, data_at = head, head + 56
    names_at = data_at + 8
    symbols_at = names_at + len(names)
    sections_at = symbols_at + len(symbols)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, program_at, sections_at, 0, 64, 56, 1, 64, 3, 0)
    program = struct.pack("<IIQQQQQQ", 1, 4, data_at, 0x2000, 0x2000, 8, 8, 8)
    sections = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, size, link, 0, 1, 24)
        for kind, at, size, link in ((0, 0, 0, 0), (11, symbols_at, len(symbols), 2), (3, names_at, len(names), 0))
    )
    return header + program + struct.pack("<II", 1, version) + names + symbols + sections


def site(root: Path, line: str = "", *, version: tuple[int, int] | None = (22, 5), included: str = "") -> list[Advice]:
    """A machine with this line in plugstack.conf (or in an included file), and a plugin for this Slurm."""
    conf = root / "etc/slurm/plugstack.conf"
    (conf.parent / "plugstack.conf.d").mkdir(parents=True)
    conf.write_text(f"# ours\n{line}\n")
    if included:
        (conf.parent / "plugstack.conf.d/robust.conf").write_text(included + "\n")
    if version is not None:
        file = root / "usr/lib/slurm/spank_robust.so"
        file.parent.mkdir(parents=True)
        file.write_bytes(library((version[0] << 16) + (version[1] << 8) + 8))
    return plugin.check(SAID, root)


def judged(found: list[Advice]) -> list[tuple[Severity, str]]:
    """Levels and what is to be typed."""
    return [(a.level, a.fix) for a in found]


@pytest.mark.parametrize("path", ["/usr/lib/slurm/spank_robust.so", "spank_robust.so"])
def test_a_site_that_follows_the_documentation_is_well(tmp_path: Path, path: str) -> None:
    """Named in full, or found in PluginDir; in an included file."""
    for n, (line, included) in enumerate(
        [
            (f"optional {path} mode=observe exits=none dumps=/x flight_recorder=off", ""),
            ("include /etc/slurm/plugstack.conf.d/*.conf", f"optional {path}"),
            ("include plugstack.conf.d/*.conf", f"optional\t{path}  # ours"),
        ]
    ):
        found = site(tmp_path / str(n), line, included=included)
        assert judged(found) == [(Severity.OK, "")]
        assert "built for this Slurm" in found[0].sentence


def test_required_is_wrong(tmp_path: Path) -> None:
    """After an update nothing would start. What the site chose stays in the line."""
    found = site(tmp_path, "required spank_robust.so mode=observe")
    assert judged(found) == [(Severity.WRONG, "optional spank_robust.so mode=observe")]


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("colour=red", "there is no such argument; known are command="),
        ("observe", "there is no such argument"),
        ("mode=maybe", "expected off, observe or on"),
        ("mode=", "expected off, observe or on"),
        ("flight_recorder=yes", "expected on or off"),
        ("exits=run", "expected an absolute path, or none"),
        ("command=none", "expected an absolute path"),
    ],
)
def test_an_argument_that_has_no_effect_is_wrong(tmp_path: Path, argument: str, why: str) -> None:
    """The plugin itself tells only slurmd's log, and who uses --robust."""
    (found,) = site(tmp_path, f"optional spank_robust.so python=none {argument}")
    assert (found.level, found.about) == (Severity.WRONG, "/etc/slurm/plugstack.conf")
    assert found.sentence.startswith(f"{argument} behind spank_robust.so has no effect: {why}")


@pytest.mark.parametrize("argument", ["", "command=/opt/tools/srobust"])
def test_srobust_must_be_where_the_plugin_looks_for_it(tmp_path: Path, argument: str) -> None:
    """Else srun says of each step that it is not supervised, to people who cannot mend it."""
    place = argument.removeprefix("command=") or "/opt/slurm_robust/bin/srobust"
    line = f"optional spank_robust.so {argument}"
    site(tmp_path, line)
    plug = tmp_path / "usr/lib/slurm/spank_robust.so"
    plug.write_bytes(plug.read_bytes() + b"\0srobust-built-in command=/opt/slurm_robust/bin/srobust\0")
    (found,) = plugin.check(SAID, tmp_path)
    assert found.level is Severity.WRONG
    assert f"no srobust at {place} on this machine" in found.sentence
    file = tmp_path / place.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    assert judged(plugin.check(SAID, tmp_path)) == [(Severity.OK, "")]


@pytest.mark.parametrize("argument", ["", "python=/opt/tools/python"])
def test_the_folder_for_the_tasks_python_must_be_there(tmp_path: Path, argument: str) -> None:
    """Built for one prefix and installed under another: nobody would notice before stacks of children are missing."""
    place = argument.removeprefix("python=") or "/usr/local/share/slurm_robust/spank"
    site(tmp_path, f"optional spank_robust.so {argument}")
    plug = tmp_path / "usr/lib/slurm/spank_robust.so"
    plug.write_bytes(plug.read_bytes() + b"\0srobust-built-in python=/usr/local/share/slurm_robust/spank\0")
    (found,) = plugin.check(SAID, tmp_path)
    assert found.level is Severity.WRONG
    assert f"there is no sitecustomize.py in {place} on this machine" in found.sentence
    assert found.fix == "make -C spank clean install prefix=/usr"
    file = tmp_path / place.lstrip("/") / "sitecustomize.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    assert judged(plugin.check(SAID, tmp_path)) == [(Severity.OK, "")]


@pytest.mark.parametrize("argument", ["python=none", "python=/a python=none"])
def test_no_folder_for_the_tasks_python_may_be_chosen(tmp_path: Path, argument: str) -> None:
    """Then none is looked for. The last word counts, as for the plugin."""
    assert judged(site(tmp_path, f"optional spank_robust.so {argument}")) == [(Severity.OK, "")]


def test_the_plugin_and_the_doctor_know_the_same_arguments() -> None:
    """As the plugin's own error lists them."""
    source = (SPANK / "src/site.c").read_text()
    assert f'known are {", ".join(f"{name}=" for name in plugin.ARGUMENTS)}"' in source


@pytest.mark.parametrize("version", [(22, 4), (23, 5), (24, 11), (26, 5)])
def test_one_built_for_another_slurm_is_wrong(tmp_path: Path, version: tuple[int, int]) -> None:
    """Slurm leaves it out, being optional: nobody would notice."""
    (found,) = site(tmp_path, "optional spank_robust.so", version=version)
    assert (found.level, found.about) == (Severity.WRONG, "/usr/lib/slurm/spank_robust.so")
    assert f"built for Slurm {version[0]}.{version[1]:02d}; this is 22.05" in found.sentence


def test_an_installed_one_that_no_line_names_is_wrong(tmp_path: Path) -> None:
    """With the line that loads it."""
    found = site(tmp_path, "optional other.so")
    assert judged(found) == [(Severity.WRONG, "include /etc/slurm/plugstack.conf.d/*.conf")]


def test_none_at_all_is_advice(tmp_path: Path) -> None:
    """Also without a plugstack.conf."""
    assert judged(site(tmp_path / "a", "", version=None))[0][0] is Severity.ADVICE
    assert judged(plugin.check(SAID, tmp_path / "b"))[0][0] is Severity.ADVICE


def test_a_named_one_that_is_not_there_is_wrong(tmp_path: Path) -> None:
    """The line came with the image, the file did not."""
    assert judged(site(tmp_path, "optional /opt/spank_robust.so"))[0][0] is Severity.WRONG


def test_a_file_that_tells_nothing_is_unknown(tmp_path: Path) -> None:
    """And so is a Slurm that does not say its version."""
    site(tmp_path, "optional spank_robust.so")
    assert judged(plugin.check({**SAID, "SLURM_VERSION": "?"}, tmp_path))[0][0] is Severity.UNKNOWN
    (tmp_path / "usr/lib/slurm/spank_robust.so").write_text("not a library")
    assert judged(plugin.check(SAID, tmp_path))[0][0] is Severity.UNKNOWN


def test_without_slurm_nothing_is_said() -> None:
    """Where slurm.conf was not told."""
    assert plugin.check({}) == []


@example(b"\0\0\0\x80" + bytes(13) + b"\x01", 434, 0)
@given(st.binary(max_size=300), st.integers(0, 500), st.integers(0, 255))
def test_no_library_makes_it_fail(tail: bytes, at: int, byte: int) -> None:
    """Cut off, garbled, or something else: it cannot be told."""
    whole = bytearray(library(0x160508))
    assert plugin.built_for(bytes(whole)) == (22, 5)
    whole[at % len(whole)] = byte
    plugin.built_for(bytes(whole))
    plugin.built_for(bytes(whole[: at % len(whole)]) + tail)
    plugin.built_for(b"\x7fELF\x02\x01" + tail)


def test_a_real_one(tmp_path: Path) -> None:
    """As `make` builds it here: for the Slurm whose headers are here."""
    need_compiler()
    assert make(tmp_path).returncode == 0
    built = plugin.built_for((tmp_path / "spank_robust.so").read_bytes())
    header = Path("/usr/include/slurm/slurm_version.h")
    assert built is not None
    if header.exists():
        assert f"0x{built[0]:02x}{built[1]:02x}" in header.read_text()


@pytest.mark.parametrize("named", [{}, {"PlugStackConfig": "(null)"}], ids=["no such key", "(null)"])
def test_where_slurm_names_no_plugstack(tmp_path: Path, named: dict[str, str]) -> None:
    """Slurm prints `(null)` for the default, the file beside slurm.conf; a node may have it from the controller."""
    said = {**SAID, **named, "SLURM_CONF": "/etc/site/slurm.conf"}
    said.pop("PlugStackConfig" if not named else "", None)
    assert [a.about for a in plugin.check(said, tmp_path)] == ["/etc/site/plugstack.conf"]
    for place in ("run/slurm/conf", "etc/site"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "plugstack.conf").write_text("required /opt/gone/spank_robust.so mode=act\n")
        found = plugin.check(said, tmp_path)
        assert {a.about for a in found} == {f"/{place}/plugstack.conf"}
        assert [a.level for a in found] == [Severity.WRONG] * 3
        told = " ".join(a.sentence for a in found)
        assert all(words in told for words in ("mode=act", "is required", "is not on this machine"))
    assert plugin.check({}, tmp_path) == []
