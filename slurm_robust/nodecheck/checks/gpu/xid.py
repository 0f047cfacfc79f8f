"""Has a GPU, a switch between them or their driver reported a fault in this boot that nobody has cleared?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from slurm_robust.nodecheck.catalogue import sxids, xids
from slurm_robust.nodecheck.catalogue.xids import XidGrade
from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import check_state
from slurm_robust.nodecheck.sources import shared_kernel_log, small_files

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{4,16})[^)]{0,40}\): (\d{1,4})\b[, ]*(.*)", re.DOTALL)
_WORDS = ("NVRM: Xid", "SXid", "fallen off the bus", "NVRM: The NVIDIA GPU ")
_ANY = re.compile(r"NVRM: Xid \(|nvidia-nvswitch\d{1,3}: SXid |NVRM: The NVIDIA GPU |NVRM: .{0,200}fallen off the bus")
_SXID = re.compile(
    r"nvidia-nvswitch(\d{1,3}): SXid \([^)]{0,40}\): ([1-9]\d{4}), (?:(Fatal|Non-fatal|Correctable)\b[, ]*)?(.*)",
    re.DOTALL | re.IGNORECASE,
)
_REGISTERS = re.compile(r"Severity \d|Data \{|SOE HALT data\[")
"""Further lines that the driver prints of one error with the same code (error_nvswitch.c, flcn_ls10.c)."""
_LOST = re.compile(r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})\b")
_OFF_THE_BUS = "fallen off the bus"
_OFF = 79
_DRIVER = re.compile(r"^NVRM version: .{1,80}?\s(\d{3,4})\.\d", re.MULTILINE)
_MAX_TEXT_CHARS = 240


def gpu_name(text: str) -> str:
    """Return a GPU's PCI address as the log writes it, brought to one shape: `0000:9b:00`."""
    name = text.strip().lower().removeprefix("pci:")
    name = re.sub(r"\.[0-9a-f]$", "", name)
    parts = name.split(":")
    if len(parts) == 2:
        parts.insert(0, "0000")
    if len(parts) == 3:
        # nvidia-smi writes the domain with eight digits, the kernel log with four.
        parts[0] = parts[0][-4:].rjust(4, "0")
    return ":".join(parts)


def _xid(text: str, driver: int) -> tuple[str, int, str, str] | None:
    """GPU, code, grade and message of a line that is an XID."""
    match = _XID.match(text)
    if match is None:
        return None
    code, message = int(match[2]), match[3][:_MAX_TEXT_CHARS]
    return gpu_name(match[1]), code, xids.grade(code, message, driver).value, message


def _sxid(text: str) -> tuple[str, int, str, str] | None:
    """Switch, code, grade and message of a line that is an SXID; None for the lines with its registers."""
    match = _SXID.match(text)
    if match is None or (not match[3] and _REGISTERS.match(match[4])):
        return None
    code, message = int(match[2]), match[4][:_MAX_TEXT_CHARS]
    fatal = match[3].lower() == "fatal" if match[3] else None
    return f"nvswitch{match[1]}", code, sxids.grade(code, fatal=fatal, message=message).value, message


def _lost(text: str, named: str) -> tuple[str, str]:
    """Return (GPU that this line says is off the bus, GPU that it begins to speak of), each empty if it names none.

    A driver that finds a GPU gone when it starts logs no XID. It says so over three lines, of which the first names the
    GPU (osapi.c of NVIDIA's open driver); `/dev/kmsg` has the three as one record.
    """
    match = _LOST.match(text)
    name = gpu_name(match[1]) if match else named
    return (name, "") if _OFF_THE_BUS in text else ("", name)


def events(texts: Iterable[str], driver: int = 0) -> list[dict[str, Any]]:
    """Return XIDs and SXIDs in log order, equal ones (device, code, grade) counted; a 154 stands at its last place.

    A GPU off the bus counts as XID 79 if the driver says so without an XID. `driver` is as in `xids.grade`.
    """
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    named = ""
    for text in texts:
        said = _xid(text, driver) or _sxid(text)
        if said is None:
            lost, named = _lost(text, named)
            if lost and (lost, _OFF, XidGrade.FAIL.value) not in found:
                event = {"gpu": lost, "xid": _OFF, "grade": XidGrade.FAIL.value, "count": 1}
                found[lost, _OFF, XidGrade.FAIL.value] = {**event, "message": text[:_MAX_TEXT_CHARS]}
            continue
        gpu, code, grade, message = said
        if code == 154:
            # The driver's last word on this GPU holds; its earlier words are withdrawn.
            for other in [key for key in found if key[:2] == (gpu, code)]:
                del found[other]
        new = {"gpu": gpu, "xid": code, "grade": grade, "count": 0, "message": message}
        found.setdefault((gpu, code, grade), new)["count"] += 1
    return list(found.values())


def _driver(context: Context) -> int:
    """Return the major number of the loaded driver, 0 if no driver is loaded or it tells no number."""
    match = _DRIVER.search(small_files.read_text(context.path("/proc/driver/nvidia/version"), 4096))
    return int(match[1]) if match else 0


def _job_gpus(context: Context) -> list[str]:
    """Return the PCI names of the GPUs that the starting job was given; empty if that is not sure.

    Slurm numbers GPUs by their device files, so the driver's minor numbers must be 0, 1, 2, … for its ids to mean them.
    """
    if context.stage != "prolog" or not context.job_gpus:
        return []
    by_minor: dict[int, str] = {}
    for folder in context.path("/proc/driver/nvidia/gpus").glob("*"):
        match = re.search(
            r"^Device Minor:\s+(\d{1,4})$", small_files.read_text(folder / "information", 8192), re.MULTILINE
        )
        if match is None:
            return []
        by_minor[int(match[1])] = gpu_name(folder.name)
    if sorted(by_minor) != list(range(len(by_minor))) or not set(context.job_gpus) <= set(by_minor):
        return []
    return [by_minor[number] for number in context.job_gpus]


def probe(context: Context, options: Options) -> Facts:
    """Read the log from where the last prolog left off, and the events latched before."""
    news = shared_kernel_log.news(context, check.name, _ANY.match, _WORDS)
    log = news.log
    return {
        "driver": context.path("/proc/driver/nvidia").is_dir(),
        "log": str(context.kmsg),
        "error": log.error,
        "errno": log.errno,
        "boot_id": news.boot_id,
        "new": events((record.text for record in log.records), context.once("nvidia_driver", lambda: _driver(context))),
        "latched": _believable(news.kept.get("latched")),
        "job_gpus": _job_gpus(context),
        "cursor": dict(log.cursor),
        "old_cursor": news.cursor,
        "advance": shared_kernel_log.counts(context),
        "before_job": context.stage == "prolog",
    }


def _believable(latched: Any) -> list[dict[str, Any]]:
    """Return the entries of a state file that have the shape of an event."""
    shape = {"gpu": str, "xid": int, "grade": str, "count": int, "message": str}
    return [
        event
        for event in (latched if isinstance(latched, list) else [])
        if isinstance(event, dict) and all(type(event.get(key)) is kind for key, kind in shape.items())
    ]


def _grade(event: Mapping[str, Any], options: Options, *, before_job: bool = False) -> str:
    """Return the event's grade, the site's word before the catalogue's.

    While a job runs, peer-to-peer traffic that the driver wants ended is that job's; none may begin with a new one.
    """
    for grade in ("fail", "warn"):
        if event["xid"] in options[grade]:
            return grade
    if event["xid"] in options["ignore"]:
        return "note"
    return "fail" if before_job and xids.wants_peers_ended(event["xid"], event["message"]) else str(event["grade"])


def _stays(event: Mapping[str, Any], options: Options) -> bool:
    """Return True for an event that is kept until a person or the driver withdraws it."""
    return "fail" in (_grade(event, options), _grade(event, options, before_job=True))


def _merged(facts: Facts) -> list[dict[str, Any]]:
    """Latched events with the new ones; a 154 that is new replaces one that is latched."""
    said = {event["gpu"] for event in facts["new"] if event["xid"] == 154}
    merged = [dict(event) for event in facts["latched"] if event["xid"] != 154 or event["gpu"] not in said]
    for event in facts["new"]:
        same = [old for old in merged if (old["gpu"], old["xid"]) == (event["gpu"], event["xid"])]
        if not same or same[0]["grade"] != event["grade"]:
            merged.append(event)
    return merged


def _entry(code: int) -> xids.Xid:
    return sxids.lookup(code) if code >= sxids.FIRST_CODE else xids.lookup(code)


def _reason(event: Mapping[str, Any]) -> str:
    return f"{'sxid' if event['xid'] >= sxids.FIRST_CODE else 'xid'}_{event['xid']}"


def _say(event: Mapping[str, Any]) -> str:
    times = f" ×{event['count']}" if event["count"] > 1 else ""
    code, name = event["xid"], _entry(event["xid"]).name
    if code >= sxids.FIRST_CODE:
        return f"SXID {code} ({name}){times} on {event['gpu']}"
    return f"XID {code} ({name}){times} on GPU {event['gpu']}"


def _elsewhere(event: Mapping[str, Any], facts: Facts) -> bool:
    """True for a fault of one GPU alone that the starting job was not given."""
    if not facts["job_gpus"] or event["gpu"] in facts["job_gpus"]:
        return False
    return xids.other_gpus_work(event["xid"], event["message"])


def judge(facts: Facts, options: Options) -> Finding:
    """Fail for a latched fault of GPU, switch or driver, never for an event that an application can cause by itself.

    In a prolog, a fault of one GPU alone only warns if the job was given others: the next run that is not a prolog's,
    or the next job on that GPU, fails.
    """
    merged = _merged(facts)
    failed = [event for event in merged if _grade(event, options, before_job=facts["before_job"]) == "fail"]
    concerned = [event for event in failed if not _elsewhere(event, facts)]
    if concerned:
        return _failed(concerned)
    if facts["error"]:
        return shared_kernel_log.unreadable(facts, needed=facts["driver"])
    warned = failed + [event for event in merged if event not in failed and _grade(event, options) == "warn"]
    if warned:
        sentence = "; ".join(_say(event) for event in warned)
        if failed:
            sentence += "; not a GPU of this job"
        remedy = "look at the kernel log and `nvidia-smi -q`; the GPUs still answer"
        return Finding.warn(_reason(warned[0]), sentence, remedy, {"events": warned})
    if merged:
        said = [_say(event) for event in merged]
        sentence = f"no fault of the node; seen: {'; '.join(said)}"
        return Finding.passed("xid_harmless", sentence, {"events": merged})
    return Finding.passed("no_xid", "no XID in this boot's kernel log")


_REMEDIES = {
    xids.Act.RESET: "drain; reset the GPU, then `srobust check --clear-xid {gpu}`; or reboot; repair if it comes back",
    xids.Act.RESET_FABRIC: "drain; reset all GPUs and switches (`nvidia-smi -r`), then "
    "`srobust check --clear-xid {gpu}`; or reboot; repair if it comes back",
    xids.Act.REBOOT: "drain and power-cycle the node (a new boot clears this); repair if it comes back",
    xids.Act.REPAIR: "drain and have the GPU repaired; a new boot or `srobust check --clear-xid {gpu}` clears this",
}
_URGENCY = {xids.Act.REPAIR: 0, xids.Act.REBOOT: 1, xids.Act.RESET_FABRIC: 2, xids.Act.RESET: 3}


def _failed(failed: list[dict[str, Any]]) -> Finding:
    worst = min(failed, key=lambda event: (_URGENCY.get(_entry(event["xid"]).act, 4), event["xid"] == 154))
    entry = _entry(worst["xid"])
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    remedy = _REMEDIES.get(entry.act, _REMEDIES[xids.Act.RESET]).format(gpu=worst["gpu"])
    evidence = {"events": failed, "fault": entry.fault.value}
    return Finding.fail(_reason(worst), _say(worst) + more, remedy, evidence)


def remember(facts: Facts, options: Options) -> Facts | None:
    """Latch faults; move the cursor if the look counts."""
    if facts["error"]:
        return None
    latched = [event for event in _merged(facts) if _stays(event, options)]
    # Until a prolog moves it, the cursor stays where it was and new lines are read again: latching twice is harmless.
    cursor = facts["cursor"] if facts["advance"] else facts["old_cursor"]
    return {"boot_id": facts["boot_id"], "cursor": cursor, "latched": latched}


def valid_while(facts: Facts, options: Options) -> list[tuple[str, ...]]:
    """Return `never` if a GPU that this job was not given has a fault: the next job may get that GPU."""
    spared = any(_stays(event, options) and _elsewhere(event, facts) for event in _merged(facts))
    return [("never",)] if spared else []


def clear(context: Context, gpu: str, options: Options) -> int:
    """Forget the latched events of one GPU, or of all; everything logged until now counts as seen.

    Returns:
        The number of latched events that were removed.

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
    if context.cache_dir is None or not check_state.save(context.cache_dir, check.name, kept):
        raise PermissionError(13, f"{context.cache_dir}: the state cannot be written there (are you root?)")
    return before - len(kept["latched"])


_LISTS = "list of codes (XIDs, SXIDs) that {what} whatever the catalogue says"
check = Check(
    **Check.parts_of(__name__),
    reads="the kernel log (`nodecheck.kmsg`), what earlier runs latched (`nodecheck.cache_dir`), SLURM_JOB_GPUS",
    cost="one pass over the kernel log, 1–20 ms",
    lane=shared_kernel_log.LANE,
    invalidating_words=_WORDS,
    options={
        "fail": Option(
            [], _LISTS.format(what="make the node unfit"), "ours: empty, the catalogue decides", items=(int,)
        ),
        "warn": Option([], _LISTS.format(what="only warn"), "ours: empty, the catalogue decides", items=(int,)),
        "ignore": Option([], _LISTS.format(what="are passed over"), "ours: empty, the catalogue decides", items=(int,)),
    },
)
