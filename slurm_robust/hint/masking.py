"""Takes out of log lines what should not leave the machine: secrets, names of people and machines, addresses, paths.

Pure. Texts that are recognised by their shape are replaced; a user's or host's name that was recognised once is
replaced in all lines. A secret without any recognisable shape (a password of common words, alone on a line) stays.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

from slurm_robust.core.text import printable, shortened

_PLACEHOLDERS = frozenset({"secret", "key", "email", "ip", "mac", "host", "path", "name"})
_TELLING_WORD = (
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token(?!s\b|i[sz])|api[_-]?key|access[_-]?key|private[_-]?key|(?<=_)key(?![a-z])|"
    r"auth(?:orization)?(?![a-z])|credential|cookie|session[_-]?id|signature|sig(?![a-z]))"
)
_ASSIGNED = re.compile(
    rf"({_TELLING_WORD}[\w-]{{0,40}}[\"']?\s{{0,3}}[:=]\s{{0,3}})((?:bearer|basic|token)\s+)?"
    r"(\"[^\"]*\"|'[^']*'|[^\s\"']\S{3,})",
    re.IGNORECASE,
)
_OPTION = re.compile(rf"(?<![\w-])(--?[\w-]{{0,40}}{_TELLING_WORD}[\w-]{{0,40}}\s+)(\S+)", re.IGNORECASE)
_BEARER = re.compile(r"\b((?:[Bb]earer|Basic)\s+)[\w.~+/=-]{8,}")
_KNOWN_TOKEN = re.compile(
    r"\b(?:(?:sk|pk|rk)-[\w-]{16,}|hf_\w{16,}|gh[opsur]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|"
    r"(?:AKIA|ASIA)[A-Z0-9]{16}|xox[a-z]-[\w-]{10,}|AIza[\w-]{30,}|nvapi-[\w-]{16,}|eyJ[\w-]{10,}\.[\w.-]+)"
)
_RUN = re.compile(r"(?<!\w)[A-Za-z0-9_+=-]{24,}")
_LONG_CHARS = 32
"""Names of at least this length have `_` or `-` between their words."""
_BASE64 = re.compile(r"[A-Za-z0-9+/]{40,}={0,2}")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_BLOCK_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]+-----")
_BLOCK_END = re.compile(r"-----END [A-Z0-9 ]+-----")
_BLOCK = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|$)")
_BLOCK_LINES = 100
"""A key in PEM has about 50 lines; a longer block is not a key."""
_BASE64_LINE = re.compile(r"\s*[A-Za-z0-9+/]{4,76}={0,2}\s*$")

_URL = re.compile(r"\b([A-Za-z][\w+.-]{1,15}://)(?:[^\s/@\"']*@)?([^\s/?#\"':]+|\[[0-9a-fA-F:]+\])(:\d+)?([^\s\"']*)")
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){0,8}")
_MAC = re.compile(r"\b(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}\b", re.IGNORECASE)
_IPV4 = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?!\d|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]{1,39}:[0-9A-Fa-f]{0,4}(?![\w:])")
_PATH = re.compile(r"(?<![\w./<>~-])(?:~[\w.-]*)?(?:/[^\s/:'\",;()\[\]{}<>|=]+)+/?|(?<![\w./<>~-])~[A-Za-z][\w.-]*")
_PUBLIC_ROOTS = frozenset({"dev", "proc", "sys", "usr", "lib", "lib64", "etc", "bin", "sbin"})
_PACKAGES = ("site-packages", "dist-packages")
_HOMES = r"(?:home|homes|users?|Users)"
_FILE_NAME = re.compile(r"[\w+-]{1,80}(?:\.[\w+-]{1,40}){0,4}\.[A-Za-z]\w{0,9}")

_PUBLIC_HOSTS = frozenset(
    {"huggingface.co", "github.com", "pypi.org", "files.pythonhosted.org", "wandb.ai", "api.wandb.ai", "localhost"}
)
_TOP_LEVEL = (
    "com|org|net|edu|gov|mil|local|localdomain|internal|intern|lan|cluster|corp|priv|arpa|cloud|hpc|"
    "de|fr|ch|at|nl|uk|eu|jp|cn|kr|in|it|es|se|no|fi|dk|pl|cz|be|ca|au|us|ai|dev"
)
_FULL_HOST = re.compile(rf"(?<![\w./<>-])(?:[A-Za-z0-9][\w-]{{0,62}}\.){{1,8}}(?:{_TOP_LEVEL})(?![\w(.-])")
_NODE_SHAPE = re.compile(
    r"(?<![\w.-])(?:(?:node|nid|cn|host|compute|login|worker|dgx|hgx|gpu[-_]?node|gpu[-_]|vm)[-_]?[a-z]?\d{1,6}"
    r"(?:[-_][a-z]?\d{1,6}){0,4}|ip(?:-\d{1,3}){4})(?![\w-])",
    re.IGNORECASE,
)
_HOST_PLACES = (
    re.compile(r"\bON ([\w.-]+) CANCELLED"),
    re.compile(r"\b(?:[Oo]n|[Ff]rom|[Tt]o) (?:node|host) ([\w.-]+)"),
    re.compile(r"\b(?:node|host)_?(?:list|names?)?\b[\"']?\s{0,3}[:=]\s{0,3}[\"']?([\w.-]+)", re.IGNORECASE),
    re.compile(r"\berror: ([\w.-]+): tasks? \d"),
    re.compile(r"^\S{0,12}\s{0,3}[\w-]{0,16}\s{0,3}\S{0,12}\d\d:\d\d:\d\d\S{0,16} ([\w.-]+)(?= [\w-]+(?:\[\d+\])?:)"),
)
_USER_PLACES = (
    re.compile(rf"/{_HOMES}/([\w.-]+)"),
    re.compile(r"(?<![\w/.])~([A-Za-z][\w.-]+)"),
    re.compile(r"\b(?:user(?:_?name)?|LOGNAME|account)\s{0,3}[:=]\s{0,3}[\"']?([\w.-]+)", re.IGNORECASE),
)
_NAME = re.compile(r"[\w.-]+")
_NAME_PART = re.compile(r"[^\W_]+")
_COMMON = frozenset(
    {"root", "localhost", "none", "null", "true", "false", "unknown", "default", "user", "users", "the"}
)


def mask_lines(lines: Sequence[str], names: Iterable[str] = ()) -> list[str]:
    """Return the lines with private parts replaced by `<secret>`, `<host>`, `<path>` and the like.

    Args:
        lines: Consecutive lines, without gaps: a key may go over several lines.
        names: Further names to replace at any place: of this machine, of its user.
    """
    found = {name for name in names if _is_name(name)}
    for line in lines:
        found |= _names_in(line)
    known = {name.lower() for name in found}
    blocks = _in_blocks(lines)
    return ["<key>" if place in blocks else _mask(line, known) for place, line in enumerate(lines)]


def mask(line: str, names: Iterable[str] = ()) -> str:
    """Return one line, masked as by `mask_lines`."""
    return mask_lines([line], names)[0]


def clean(text: str, most_chars: int) -> str:
    """Return text from outside in a form for people: masked, on one line, without control characters, and cut."""
    return shortened(mask(one_line(text[: 8 * most_chars])), most_chars)


def one_line(text: str) -> str:
    """Return the text without line ends, and without anything that changes how a terminal shows it."""
    return " ".join(printable(text, " ").split())


def _mask(line: str, names: set[str]) -> str:
    line = _BLOCK.sub("<key>", line)
    line = _URL.sub(_url, line)
    line = _ASSIGNED.sub(r"\1\2<secret>", line)
    line = _OPTION.sub(r"\1<secret>", line)
    line = _BEARER.sub(r"\1<secret>", line)
    line = _KNOWN_TOKEN.sub("<secret>", line)
    line = _EMAIL.sub("<email>", line)
    line = _MAC.sub("<mac>", line)
    line = _IPV4.sub("<ip>", line)
    line = _IPV6.sub(_ipv6, line)
    line = _BASE64.sub(lambda found: _random(found[0], least_digits=1), line)
    line = _RUN.sub(lambda found: _random(found[0], least_digits=4), line)
    line = _PATH.sub(_path, line)
    for pattern in _HOST_PLACES:
        line = pattern.sub(_host, line)
    line = _FULL_HOST.sub("<host>", line)
    line = _NODE_SHAPE.sub("<host>", line)
    return _without_names(line, names)


def _names_in(line: str) -> set[str]:
    users = {name for pattern in _USER_PLACES for name in pattern.findall(line)}
    hosts = {name for pattern in _HOST_PLACES for name in pattern.findall(line)}
    # A host's name without a digit may be any word: `on node failure`.
    hosts = {name.split(".")[0] for name in hosts if any(char.isdigit() for char in name) and not name.isdigit()}
    return {name for name in (one.strip(".-") for one in users | hosts) if _is_name(name)}


def _is_name(name: str) -> bool:
    return len(name) > 1 and not name.isdigit() and name.lower() not in _COMMON | _PLACEHOLDERS


def _without_names(line: str, names: set[str]) -> str:
    """Return the line with `<name>` for these names (lower case), as words or in parts such as `ann_run`, `n1.lan`."""

    def replaced(found: re.Match[str]) -> str:
        word = found[0]
        if word.strip(".-_").lower() in names:
            return "<name>"
        pieces = ["<name>" if piece.lower() in names else _NAME_PART.sub(part, piece) for piece in word.split(".")]
        return ".".join(pieces)

    def part(found: re.Match[str]) -> str:
        return "<name>" if found[0].lower() in names else found[0]

    return _NAME.sub(replaced, line) if names else line


def _in_blocks(lines: Sequence[str]) -> set[int]:
    """Return the places of lines inside a key or certificate, even if its first line is missing."""
    inside: set[int] = set()
    begun: int | None = None
    for place, line in enumerate(lines):
        if _BLOCK_END.search(line) and not _BLOCK_BEGIN.search(line):
            first = place if begun is None else begun
            while begun is None and first > 0 and place - first < _BLOCK_LINES and _BASE64_LINE.match(lines[first - 1]):
                first -= 1
            inside.update(range(first, place + 1))
            begun = None
        elif _BLOCK_BEGIN.search(line) and not _BLOCK_END.search(line):
            begun = place
        if begun is not None and place - begun < _BLOCK_LINES:
            inside.add(place)
    return inside


def _random(run: str, least_digits: int) -> str:
    """Return `<secret>` for a run of characters that is not a word or identifier; else the run itself."""
    digits = sum(char.isdigit() for char in run)
    if not digits or digits == len(run):
        return run
    parts = _PARTS.findall(run)
    joined = len(run) >= _LONG_CHARS and not set(run) & set("_-")
    words = not joined and digits < least_digits and len(run) / max(1, len(parts)) >= 3
    return run if words else "<secret>"


def _url(found: re.Match[str]) -> str:
    scheme, host, port, rest = found[1], found[2], found[3] or "", found[4]
    host = host if host.lower() in _PUBLIC_HOSTS else "<host>"
    return f"{scheme}{host}{port}{'/<path>' if rest.strip('/.,;)') else rest}"


def _ipv6(found: re.Match[str]) -> str:
    try:
        ipaddress.IPv6Address(found[0])
    except ValueError:
        return found[0]
    return "<ip>" if found[0] != "::" else found[0]


def _path(found: re.Match[str]) -> str:
    parts = [part for part in found[0].split("/") if part]
    if parts[0].startswith("~"):
        parts = ["~", *parts[1:]]
    elif parts[0] in _PUBLIC_ROOTS or len(parts) == 1:
        return found[0]
    for folder in _PACKAGES:
        if folder in parts:
            return "/".join(["<path>", *parts[parts.index(folder) :]])
    at_home = len(parts) > 1 and re.fullmatch(_HOMES, parts[-2]) is not None
    if len(parts) > 1 and not at_home and _FILE_NAME.fullmatch(parts[-1]):
        return f"<path>/{parts[-1]}"
    return "<path>"


def _host(found: re.Match[str]) -> str:
    name = found[1]
    if name.isdigit() or _IPV4.fullmatch(name) or name.lower() in ("localhost", "failure"):
        return found[0]
    start = found.start(1) - found.start()
    return f"{found[0][:start]}<host>{found[0][start + len(name) :]}"
