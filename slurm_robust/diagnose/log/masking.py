"""Secrets and names are removed from a text before it leaves the machine.

Rather a harmless word too many than a password too few. Hosts get numbers, so that a page still shows which lines are
of the same one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SECRET = "<secret>"  # noqa: S105 - what stands in its place
_VALUE = r"(?:(?:Bearer|Basic|Token)\s+)?(?:\"[^\"]*\"?|'[^']*'?|[^\s\"',;&]+)"
_NAME = (
    r"[\w.-]{0,40}(?:passw(?:or)?d|passphrase|pwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|auth[_-]?key"
    r"|credentials?|token(?!s)|authorization|cookie|signature|wandb_key)[\w.-]{0,40}"
)
_NAMED = re.compile(rf"(?i)(?P<name>\b{_NAME}[\"']?\s*(?:[:=]|=>|\bis\b)\s*){_VALUE}")
_OPTION = re.compile(rf"(?i)(?P<name>--?{_NAME}\s+){_VALUE}")
_BEARER = re.compile(r"(?i)\b(?P<name>Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{6,}")
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|gh[pousr]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|sk-[\w-]{8,}|xox[a-z]-[\w-]{8,}"
    r"|A(?:KIA|SIA|ROA)[A-Z0-9]{12,}|AIza[\w-]{20,}|ya29\.[\w-]{10,}|eyJ[\w-]{8,}(?:\.[\w-]+){0,2}|pypi-[\w-]{16,})"
    r"|ssh-(?:rsa|ed25519|dss) [A-Za-z0-9+/=]{16,}"
)
_LONG = re.compile(
    r"(?<![A-Za-z0-9+/_-])(?=[A-Za-z0-9+_-]{0,400}\d)(?=[A-Za-z0-9+_-]{0,400}[A-Za-z])[A-Za-z0-9+_-]{32,}={0,2}"
)
"""Letters and digits without a blank: keys, hashes, signatures."""
_KEY_BLOCK = re.compile(r"-----BEGIN[^-]{0,60}-----|^\s*[A-Za-z0-9+/]{60,}={0,2}\s*$")
_USER_IN_URL = re.compile(r"(?P<name>\b[a-zA-Z][\w+.-]{0,20}://)[^\s/@]*@")
_MAIL = re.compile(r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)*")
_IP = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)")
_IP6 = re.compile(
    r"(?<![\w:])(?:(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|(?:[0-9a-fA-F]{1,4}:){1,7}:(?:[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){0,6})?"
    r"|::(?:ffff:)?[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){0,6})(?::\d{5})?(?!\w|:\w|::)"
)
_MAC = re.compile(r"\b[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5,19}\b")
_HOME = re.compile(
    r"(?P<name>/(?:[\w.-]+/){0,3}?(?:home|homes|Users|users|scratch|work|project|projects)/)[^\s/:\"',;)\]]+"
)
_TILDE = re.compile(r"(?<![\w/])~[A-Za-z_][\w.-]*")
_DOMAIN = re.compile(
    r"(?i)\b(?=[a-z0-9.-]{0,200}[a-z])[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){0,8}\.(?:com|org|net|edu|gov|mil|int|io|ai|dev|cloud|info|biz|local"
    r"|internal|intranet|lan|cluster|corp|home|arpa|eu|de|fr|uk|ch|at|nl|be|it|es|pt|se|no|fi|dk|pl|cz|us|ca|au|jp|cn|kr|in|br|ru|il|sg|tw)\b(?!\()"
)
_NODE = re.compile(
    r"(?i)(?<![\w./-])[a-z-]{0,30}(?:node|host|gpu|cn|compute|worker|server|dgx|hgx|nid|login|ip)-?"
    r"[a-z]{0,12}-?\d{2,}(?:-[a-z0-9]+)*(?![\w.])"
)
_SAID_HOST = re.compile(
    r"(?P<before>\b(?:srun: error: (?=[\w.-]+: )|slurmstepd-|[Hh]ost(?:name)?\s*[:=]\s*"
    r"|(?:STEP|JOB) \S+ ON |on (?:node|host) ))"
    r"(?P<host>[A-Za-z0-9][\w.-]*\w|[A-Za-z0-9])"
)


class Masker:
    """Masks the lines of one text; the same host has the same number in all of them."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        """`hosts` are names that are known to be hosts' (the job's nodes); others are told by their form."""
        known = sorted({host for host in hosts if host}, key=len, reverse=True)
        self._known = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, known))})(?![\w-])") if known else None
        self._numbers: dict[str, int] = {}

    def mask(self, text: str) -> str:
        """The text without tokens, keys, passwords, home directories, hosts, addresses and e-mail addresses."""
        if self._known is not None:
            text = self._known.sub(self._host, text)
        text = _USER_IN_URL.sub(rf"\g<name>{_SECRET}@", text)
        text = _NAMED.sub(rf"\g<name>{_SECRET}", text)
        text = _OPTION.sub(rf"\g<name>{_SECRET}", text)
        text = _BEARER.sub(rf"\g<name> {_SECRET}", text)
        for pattern in (_KEY_BLOCK, _TOKEN, _LONG):
            text = pattern.sub(_SECRET, text)
        text = _MAIL.sub(lambda m: m[0] if m[0].startswith(_SECRET) else "<mail>", text)
        for pattern in (_MAC, _IP6, _IP):
            text = pattern.sub("<address>", text)
        text = _HOME.sub(r"\g<name><user>", text)
        text = _TILDE.sub("~<user>", text)
        text = _SAID_HOST.sub(lambda m: m["before"] + self._number(m["host"]), text)
        for pattern in (_DOMAIN, _NODE):
            text = pattern.sub(self._host, text)
        return text

    def _host(self, found: re.Match[str]) -> str:
        return self._number(found[0])

    def _number(self, host: str) -> str:
        number = self._numbers.setdefault(host.lower(), len(self._numbers) + 1)
        return f"<host {number}>"
