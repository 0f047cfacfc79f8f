"""Has the kernel reported trouble with network cards since the last prolog?"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import shared_kernel_log

_MLX5 = r"mlx5_core [0-9a-f:.]{7,16}:?.{0,120}?"
_KINDS = {
    "table_overflow": r"(?:neighbour: )?\w{1,16}_cache: neighbor table overflow|"
    r"nf_conntrack: (?:nf_conntrack: )?table full",
    "transmit_timeout": r"NETDEV WATCHDOG: .{1,60}: transmit queue \d+ timed out|" + _MLX5 + r"TX timeout detected|"
    r"ena [0-9a-f:.]{7,16}.{0,40}: Keep alive watchdog timeout",
    "command_timeout": _MLX5 + r"timeout\. Will cause a leak of a command resource",
    "cable_error": _MLX5 + r"Port module event\[error\]",
    "overheated": _MLX5 + r"(?:High [Tt]emperature|[Hh]igh temperature on sensors)",
    "power_insufficient": _MLX5 + r"Detected insufficient power on the PCIe slot",
    "card_unhealthy": _MLX5 + r"(?:health compromised|Fatal error \d+ detected|health recovery fail)",
}
"""What each line means, worst last.

Not among them: `Cable unplugged`, which is a person's hand, and `ACCESS_REG failed`, which is what a virtual function
says that may not read its card."""
_WORDS = ("mlx5_core ", "NETDEV WATCHDOG: ", "Keep alive watchdog timeout", "table full", "table overflow")
"""Each of these lines has one of them."""
_REMEDIES = {
    "table_overflow": "see the checks neighbours and conntrack: raise the table's limit",
    "transmit_timeout": "look at driver and firmware: `ethtool -i`; if it repeats, have the card looked at",
    "command_timeout": "the card's firmware does not answer: reset it (`mlxfwreset`) or reboot the node",
    "cable_error": "reseat or replace cable and transceiver: `mlxlink -d DEVICE -m`",
    "overheated": "look at fans and airflow; `mget_temp -d DEVICE`",
    "power_insufficient": "plug in the card's power cable; look at the slot's power limit",
    "card_unhealthy": "reset the card (`mlxfwreset`) or reboot the node; if it repeats, have it replaced",
}
_ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_MAX_EXAMPLE_CHARS = 200


@functools.cache
def _any() -> re.Pattern[str]:
    """One pattern of all kinds; compiled in the probe's own process, for it is large."""
    return re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()))


def count(texts: Iterable[str]) -> dict[str, Facts]:
    """Lines by kind: how many, one example, and the PCI addresses they name."""
    seen: dict[str, Facts] = {}
    for text in texts:
        match = _any().match(text)
        if match is None:
            continue
        kind = next(kind for kind in _KINDS if match[kind] is not None)
        entry = seen.setdefault(kind, {"count": 0, "example": text[:_MAX_EXAMPLE_CHARS], "cards": []})
        entry["count"] += 1
        address = re.search(_ADDRESS, text)
        if address and address[0] not in entry["cards"]:
            entry["cards"].append(address[0])
    return seen


def probe(context: Context, options: Options) -> Facts:
    """Read what was logged since the last prolog."""
    news = shared_kernel_log.news(context, check.name, _any().match, _WORDS)
    log = news.log
    return {
        "error": log.error,
        "errno": log.errno,
        "boot_id": news.boot_id,
        "seen": count(record.text for record in log.records),
        "cursor": dict(log.cursor if shared_kernel_log.counts(context) else news.cursor),
    }


def judge(facts: Facts, options: Options) -> Finding:
    """Only warns: what a card can no longer do, the other checks see in its state."""
    if facts["error"]:
        return shared_kernel_log.unreadable(facts, needed=False)
    seen = {kind: entry for kind, entry in facts["seen"].items() if kind not in options["ignore"]}
    if not seen:
        return Finding.passed("quiet", "the kernel log shows no trouble with network cards since the last run")
    worst = next(kind for kind in reversed(_KINDS) if kind in seen)
    said = ", ".join(f"{kind} ×{entry['count']}" for kind, entry in seen.items())
    cards = sorted({card for entry in seen.values() for card in entry["cards"]})
    sentence = f"kernel log on network cards{' ' + ', '.join(cards[:4]) if cards else ''}: {said}"
    return Finding.warn(worst, sentence, _REMEDIES[worst], {"seen": seen})


def remember(facts: Facts, options: Options) -> Facts | None:
    """Where the next run goes on."""
    return None if facts["error"] else {"boot_id": facts["boot_id"], "cursor": facts["cursor"]}


check = Check(
    **Check.parts_of(__name__),
    reads="the kernel log (`nodecheck.kmsg`)",
    cost="one pass over the kernel log, 1–20 ms",
    lane=shared_kernel_log.LANE,
    invalidating_words=("health compromised", "Fatal error", "health recovery fail"),
    options={"ignore": Option([], f"list of kinds to ignore: {', '.join(_KINDS)}", "ours: none is")},
)
