"""XIDs and fatal NVSwitch errors of this boot: has a GPU said that it is broken?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from slurm_robust.nodecheck import kmsg, state, xids
from slurm_robust.nodecheck.checks.host.kernel_log import booted_at_s, unreadable
from slurm_robust.nodecheck.context import STAGES, Context
from slurm_robust.nodecheck.finding import Finding, Status
from slurm_robust.nodecheck.registry import Check, Facts, Option, Options

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{4,16})[^)]{0,40}\): (\d{1,4})\b[, ]*(.*)", re.DOTALL)
_ANY = re.compile(r"NVRM: Xid \(|nvidia-nvswitch\d{1,3}: SXid ")
_SXID = re.compile(r"nvidia-nvswitch(\d{1,3}): SXid \([^)]{0,40}\): (\d{1,6}), (.*)", re.DOTALL)
_MAX_TEXT_CHARS = 240


def gpu_name(text: str) -> str:
    """A GPU's PCI address as the log writes it, brought to one shape: `0000:9b:00`."""
    name = text.strip().lower().removeprefix("pci:")
    name = re.sub(r"\.[0-9a-f]$", "", name)
    parts = name.split(":")
    if len(parts) == 2:
        parts.insert(0, "0000")
    if len(parts) == 3:
        # nvidia-smi writes the domain with eight digits, the kernel log with four.
        parts[0] = parts[0][-4:].rjust(4, "0")
    return ":".join(parts)


def events(texts: Iterable[str]) -> list[dict[str, Any]]:
    """XIDs in log order, equal ones (GPU, code, grade) counted; a 154 stands where it was said last."""
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for text in texts:
        match = _XID.match(text)
        if match is None:
            continue
        gpu, code, message = gpu_name(match[1]), int(match[2]), match[3][:_MAX_TEXT_CHARS]
        key = (gpu, code, xids.grade(code, message).value)
        if code == 154:
            # The driver's last word on this GPU holds; what it wanted before is withdrawn.
            for other in [k for k in found if k[:2] == key[:2]]:
                del found[other]
        entry = found.setdefault(key, {"gpu": gpu, "xid": code, "grade": key[2], "count": 0, "message": message})
        entry["count"] += 1
    return list(found.values())


def switch_errors(texts: Iterable[str]) -> list[dict[str, Any]]:
    """NVSwitch errors that call themselves fatal, counted."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for text in texts:
        match = _SXID.match(text)
        if match is None or not re.match(r"fatal\b", match[3], re.IGNORECASE):
            continue
        key = (match[1], int(match[2]))
        entry = found.setdefault(
            key, {"switch": key[0], "sxid": key[1], "count": 0, "message": match[3][:_MAX_TEXT_CHARS]}
        )
        entry["count"] += 1
    return list(found.values())


def probe(context: Context, options: Options) -> Facts:
    """Read the log from where the last prolog left off, and what is latched from before."""
    boot_id = context.boot_id()
    kept = state.load(context.cache_dir, check.name)
    same_boot = kept.get("boot_id") == boot_id
    cursor = kept.get("cursor")
    cursor = cursor if isinstance(cursor, dict) else {}
    if not same_boot:
        # The kernel counts its records anew; a plain file goes on.
        cursor = {key: value for key, value in cursor.items() if key != "seq"}
    log = kmsg.read(context.kmsg, _ANY, cursor, booted_at_s(context))
    texts = [record.text for record in log.records]
    latched = kept.get("latched") if same_boot else None
    return {
        "driver": context.path("/proc/driver/nvidia").is_dir(),
        "log": str(context.kmsg),
        "error": log.error,
        "errno": log.errno,
        "boot_id": boot_id,
        "new": events(texts),
        "switch": switch_errors(texts),
        "latched": latched if isinstance(latched, list) else [],
        "cursor": dict(log.cursor),
        "old_cursor": cursor,
        # Only the prolog's look counts as seen: what a periodic look sees, the next prolog sees too.
        "advance": context.stage == "prolog",
    }


def _grade(event: Mapping[str, Any], options: Options) -> str:
    """The event's grade, the site's word before the catalogue's."""
    for grade in ("fail", "warn"):
        if event["xid"] in options[grade]:
            return grade
    return "note" if event["xid"] in options["ignore"] else str(event["grade"])


def _merged(facts: Facts) -> list[dict[str, Any]]:
    """Latched events with the new ones; a 154 that is new replaces one that is latched."""
    said = {event["gpu"] for event in facts["new"] if event["xid"] == 154}
    merged = [dict(event) for event in facts["latched"] if event["xid"] != 154 or event["gpu"] not in said]
    for event in facts["new"]:
        same = [old for old in merged if (old["gpu"], old["xid"]) == (event["gpu"], event["xid"])]
        if not same or same[0]["grade"] != event["grade"]:
            merged.append(event)
    return merged


def _say(event: Mapping[str, Any]) -> str:
    times = f" ×{event['count']}" if event["count"] > 1 else ""
    return f"XID {event['xid']} ({xids.lookup(event['xid']).name}){times} on GPU {event['gpu']}"


def judge(facts: Facts, options: Options) -> Finding:
    """A latched fault of GPU or driver fails; what an application can do by itself never does."""
    merged = _merged(facts)
    failed = [event for event in merged if _grade(event, options) == "fail"]
    if failed:
        return _failed(failed)
    if facts["error"]:
        return unreadable(facts, needed=facts["driver"])
    warned = [event for event in merged if _grade(event, options) == "warn"]
    if warned or facts["switch"]:
        said = [_say(event) for event in warned]
        said += [f"SXID {e['sxid']} (fatal) on NVSwitch {e['switch']}" for e in facts["switch"]]
        reason = f"xid_{warned[0]['xid']}" if warned else f"sxid_{facts['switch'][0]['sxid']}"
        remedy = "look at the kernel log and `nvidia-smi -q`; the GPUs still answer"
        return Finding(Status.WARN, reason, "; ".join(said), remedy, {"events": warned, "switch": facts["switch"]})
    if merged:
        said = [_say(event) for event in merged]
        sentence = f"no fault of the node; seen: {'; '.join(said)}"
        return Finding(Status.PASS, "xid_harmless", sentence, "", {"events": merged})
    return Finding(Status.PASS, "no_xid", "no XID in this boot's kernel log")


_REMEDIES = {
    xids.Act.RESET: "drain; reset the GPU, then `srobust check --clear-xid {gpu}`; or reboot; repair if it comes back",
    xids.Act.REBOOT: "drain and power-cycle the node (a new boot clears this); repair if it comes back",
    xids.Act.REPAIR: "drain and have the GPU repaired; a new boot or `srobust check --clear-xid {gpu}` clears this",
}
_URGENCY = {xids.Act.REPAIR: 0, xids.Act.REBOOT: 1, xids.Act.RESET: 2}


def _failed(failed: list[dict[str, Any]]) -> Finding:
    worst = min(failed, key=lambda event: (_URGENCY.get(xids.lookup(event["xid"]).act, 3), event["xid"] == 154))
    entry = xids.lookup(worst["xid"])
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    remedy = _REMEDIES.get(entry.act, _REMEDIES[xids.Act.RESET]).format(gpu=worst["gpu"])
    evidence = {"events": failed, "fault": entry.fault.value}
    return Finding(Status.FAIL, f"xid_{worst['xid']}", _say(worst) + more, remedy, evidence)


def remember(facts: Facts, options: Options) -> Facts | None:
    """Latch what fails; move the cursor where the look counts."""
    if facts["error"]:
        return None
    latched = [event for event in _merged(facts) if _grade(event, options) == "fail"]
    # Until a prolog moves it, the cursor stays where it was and new lines are read again: latching twice is harmless.
    cursor = facts["cursor"] if facts["advance"] else facts["old_cursor"]
    return {"boot_id": facts["boot_id"], "cursor": cursor, "latched": latched}


def clear(context: Context, gpu: str, options: Options) -> int:
    """Forget what is latched for one GPU, or for all; everything logged until now counts as seen.

    Returns:
        How many latched events went.

    Raises:
        OSError: the log cannot be read, or the state cannot be written.
    """
    facts = probe(context, options)
    if facts["error"]:
        raise OSError(facts["errno"], facts["error"])
    kept = remember({**facts, "advance": True}, options)
    assert kept is not None
    before = len(kept["latched"])
    name = gpu_name(gpu)
    kept["latched"] = [event for event in kept["latched"] if gpu != "all" and event["gpu"] != name]
    if context.cache_dir is None or not state.save(context.cache_dir, check.name, kept):
        raise PermissionError(13, f"{context.cache_dir}: the state cannot be written there (are you root?)")
    return before - len(kept["latched"])


_LISTS = "list of codes that {what} whatever the catalogue says"
check = Check(
    name="xid",
    question="Has a GPU or its driver reported a fault in this boot that nobody has cleared?",
    reads="the kernel log (`nodecheck.kmsg`) and what earlier looks latched (`nodecheck.cache_dir`)",
    cost="one pass over the kernel log, 1–20 ms",
    stages=STAGES,
    probe=probe,
    judge=judge,
    lane="kernel_log",
    log_words=("NVRM: Xid", "SXid"),
    remember=remember,
    options={
        "fail": Option([], _LISTS.format(what="make the node unfit"), "ours: empty, the catalogue decides"),
        "warn": Option([], _LISTS.format(what="only warn"), "ours: empty, the catalogue decides"),
        "ignore": Option([], _LISTS.format(what="are passed over"), "ours: empty, the catalogue decides"),
    },
)
