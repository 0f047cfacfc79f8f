"""Has the kernel reported trouble with network cards since the last prolog?"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import kernel_looks, shared_kernel_log

_PCI = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_MLX5 = rf"mlx5_core {_PCI}:?.{{0,120}}?"
_KINDS = {
    "table_overflow": r"(?:neighbour: )?\w{1,16}_cache: neighbor table overflow|"
    r"nf_conntrack: (?:nf_conntrack: )?table full",
    "transmit_timeout": r"NETDEV WATCHDOG: .{1,60}: transmit queue \d+ timed out|" + _MLX5 + r"TX timeout detected|"
    rf"ena {_PCI}.{{0,40}}: Keep alive watchdog timeout",
    "command_timeout": _MLX5 + r"timeout\. Will cause a leak of a command resource",
    "cable_error": _MLX5 + r"Port module event\[error\]",
    "overheated": _MLX5 + r"(?:High [Tt]emperature|[Hh]igh temperature on sensors)",
    "power_insufficient": _MLX5 + r"Detected insufficient power on the PCIe slot",
    "card_unhealthy": _MLX5 + r"(?:health compromised|Fatal error \d+ detected|health recovery f(?:ail|low aborted)|"
    r"Health issue observed, firmware internal error(?!, severity\([5-7]\)))",
}
"""The meaning of each kind of line, worst last. Left out are `Cable unplugged`, which a person does, and `ACCESS_REG
failed`, which a virtual function says if it may not read its card."""
_WORDS = {
    "table_overflow": ("table full", "table overflow"),
    "transmit_timeout": ("NETDEV WATCHDOG: ", "TX timeout detected", "Keep alive watchdog timeout"),
    "command_timeout": ("Will cause a leak of a command",),
    "cable_error": ("Port module event[error]",),
    "overheated": ("High Temperature", "High temperature", "high temperature"),
    "power_insufficient": ("Detected insufficient power",),
    "card_unhealthy": ("health compromised", "Fatal error ", "health recovery f", "Health issue observed"),
}
"""Kind → words, one of which is in each line of the kind."""
_REMEDIES = {
    "table_overflow": "see the checks neighbours and conntrack: raise the table's limit",
    "transmit_timeout": "look at driver and firmware: `ethtool -i`; if it repeats, have the card looked at",
    "command_timeout": "the card's firmware does not answer: reset it (`mlxfwreset`) or reboot the node",
    "cable_error": "reseat or replace cable and transceiver: `mlxlink -d DEVICE -m`",
    "overheated": "look at fans and airflow; `mget_temp -d DEVICE`",
    "power_insufficient": "plug in the card's power cable; look at the slot's power limit",
    "card_unhealthy": "reset the card (`mlxfwreset`) or reboot the node; if it repeats, have it replaced",
}
_MAX_EXAMPLE_CHARS = 200


@functools.cache
def _any() -> re.Pattern[str]:
    """Return one pattern of all kinds; compiled in the probe's own process, since it is large."""
    return re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()))


def _add(seen: dict[str, Facts], text: str) -> None:
    """Count one line."""
    match = _any().match(text)
    if match is None:
        return
    kind = next(kind for kind in _KINDS if match[kind] is not None)
    entry = seen.setdefault(kind, {"count": 0, "example": text[:_MAX_EXAMPLE_CHARS], "cards": []})
    entry["count"] += 1
    address = re.search(_PCI, text)
    if address and address[0] not in entry["cards"]:
        entry["cards"].append(address[0])


def count(texts: Iterable[str]) -> dict[str, Facts]:
    """Lines by kind: how many, one example, and the PCI addresses they name."""
    seen: dict[str, Facts] = {}
    for text in texts:
        _add(seen, text)
    return seen


def probe(context: Context, options: Options) -> Facts:
    """Read the log since the last prolog."""
    seen: dict[str, Facts] = {}
    words = [word for words in _WORDS.values() for word in words]
    add = functools.partial(_add, seen)
    news = shared_kernel_log.news(context, check.name, add, words, shared_kernel_log.MOST_LINES)
    log = news.log
    return {
        "error": log.error,
        "errno": log.errno,
        "boot_id": news.boot_id,
        "seen": seen,
        "unseen": [
            kind
            for kind, entry in seen.items()
            if kernel_looks.shown(context.root, "nic_firmware", entry["cards"], entry["example"], 0) is False
        ],
        "flooded": [kind for kind in seen if log.capped.intersection(_WORDS[kind])],
        "cursor": dict(log.cursor if shared_kernel_log.counts(context) else news.cursor),
    }


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: other checks see in a card's state what it can no longer do."""
    if facts["error"]:
        return shared_kernel_log.unreadable(facts, needed=False)
    seen = {kind: entry for kind, entry in facts["seen"].items() if kind not in options["ignore"]}
    if not seen:
        return Finding.passed("quiet", "the kernel log shows no trouble with network cards since the last run")
    worst = next(kind for kind in reversed(_KINDS) if kind in seen)
    said = ", ".join(
        f"{kind} {shared_kernel_log.times(entry['count'], flooded=kind in facts['flooded'])}"
        for kind, entry in seen.items()
    )
    cards = sorted({card for entry in seen.values() for card in entry["cards"]})
    sentence = f"kernel log on network cards{' ' + ', '.join(cards[:4]) if cards else ''}: {said}"
    return Finding.warn(worst, sentence, _REMEDIES[worst], {"seen": seen})


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep where the next run goes on."""
    return None if facts["error"] else {"boot_id": facts["boot_id"], "cursor": facts["cursor"]}


check = Check(
    **Check.parts_of(__name__),
    reads="the kernel log (`nodecheck.kmsg`); whether the cards that it names are there: /sys/bus/pci/devices",
    cost="one pass over the kernel log, 1–20 ms",
    lane=shared_kernel_log.LANE,
    invalidating_words=("health compromised", "Fatal error", "health recovery f", "Health issue observed"),
    options={"ignore": Option([], f"list of kinds to ignore: {', '.join(_KINDS)}", "ours: none is", tuple(_KINDS))},
)
