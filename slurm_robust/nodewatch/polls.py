"""Runs registered node checks again and again in a child (sources `poll` and `rdma`)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.nodecheck.catalogue import job_urgency
from slurm_robust.nodecheck.engine import check_state, registry, runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Status
from slurm_robust.nodecheck.engine.registry import Check
from slurm_robust.nodecheck.sources import rdma, small_files
from slurm_robust.nodewatch import urgency
from slurm_robust.nodewatch.child import Body, Message, Send, parent_gone
from slurm_robust.nodewatch.host_load import HostLoad
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.ring import Seen
from slurm_robust.nodewatch.verdicts import Verdicts, to_json

NODE_CHECKS = ("gpu_count", "filesystem", "disks", "disk_health", "clock", "ethernet", "bonding")
NODE_EVERY_S = 30.0
RDMA_CHECKS = ("rdma_ports", "rdma_errors")
RDMA_EVERY_S = 2.0
_RDMA_CHECKS_EVERY_S = 10.0
_OFF = "port_disabled"
_FILES = "files"
Chosen = Mapping[str, Mapping[str, Any]]
_PortState = tuple[str, "int | None"]
"""State, and links lost since the card started; empty and None if it cannot be read."""


def available(names: Sequence[str], disable: Sequence[str]) -> list[Check]:
    """Return these checks without those that the site has switched off."""
    return registry.select("full", names, disable)


def run_here(check: Check, context: Context, chosen: Chosen) -> dict[str, Any]:
    """Run one check in this process, which may hang with it; as `verdicts.to_json`."""
    settings = check.settings(chosen.get(check.name, {}))
    facts = check.probe(replace(context, deadline_s=check.deadline_s or context.deadline_s), settings)
    finding = check.judge(facts, settings)
    kept = check.remember(facts, settings) if check.remember is not None else None
    if kept is not None and context.cache_dir is not None:
        check_state.save(context.cache_dir, check.name, kept)
    return to_json(check.name, finding)


def node_body(
    checks: Sequence[Check], context: Context, chosen: Chosen, deadline_s: float, disable: Sequence[str] = ()
) -> Body:
    """Return a body that runs these checks every half minute; a check that may block runs in a process of its own.

    Checks that read only /proc and /sys (their lane is `files`) run in the child itself, which saves their processes.
    """
    apart = [check for check in checks if check.lane != _FILES]

    def body(send: Send) -> None:
        parent = os.getppid()
        load = HostLoad(context, chosen, disable)
        while not parent_gone(parent):
            fresh = replace(context, shared={}, deadline_s=deadline_s)
            results = [run_here(check, fresh, chosen) for check in checks if check.lane == _FILES]
            report = runner.run(apart, context, chosen, deadline_s)
            results += [to_json(result.name, result.finding) for result in report.results]
            try:
                loaded, log = load.look()
            except Exception as error:  # noqa: BLE001 (what only informs must not end what watches disks and mounts)
                loaded, log = [], [f"CPU and memory cannot be looked at: {error!r}"]
            send({"results": results + loaded, "log": log})
            time.sleep(NODE_EVERY_S)

    return body


def has_rdma(context: Context) -> bool:
    """Return whether there is any RDMA device; a directory's listing asks no firmware."""
    return bool(small_files.names(context.path(rdma.CLASS)))


def rdma_body(checks: Sequence[Check], context: Context, chosen: Chosen) -> Body:
    """Follows the ports until all devices are gone: state and lost links every two seconds, the checks at a change."""
    ignore = registry.get("rdma_ports").settings(chosen.get("rdma_ports", {}))["ignore"]

    def body(send: Send) -> None:
        parent = os.getppid()
        before: dict[str, _PortState] = {}
        checked_s = -_RDMA_CHECKS_EVERY_S
        while (read := ports(context, ignore)) and not parent_gone(parent):
            now = {name: _known(before.get(name), port) for name, port in read.items()}
            down = [name for name, (state, _) in now.items() if _lost(before.get(name), state)]
            down += [name for name in before if name not in now and before[name][0] == "ACTIVE"]
            flapped = [n for n, (state, lost) in now.items() if n not in down and _flapped(before.get(n), state, lost)]
            up = [n for n, (state, _) in now.items() if state == "ACTIVE" != before.get(n, ("", None))[0] != ""]
            before = now
            results = []
            if down or flapped or up or time.monotonic() - checked_s >= _RDMA_CHECKS_EVERY_S:
                checked_s = time.monotonic()
                fresh = replace(context, shared={})
                results = [run_here(check, fresh, chosen) for check in checks]
            states = {name: state for name, (state, _) in now.items()}
            if results or down or up:
                send({"down": down, "flapped": flapped, "up": up, "states": states, "results": results})
            time.sleep(RDMA_EVERY_S)

    return body


def ports(context: Context, ignore: Sequence[Any]) -> dict[str, _PortState]:
    """Return every port that concerns this node, by `mlx5_0/1`."""
    found = {}
    for device, port in rdma.all_ports(_named(context), ignore):
        folder = context.path(rdma.CLASS) / device["name"] / "ports" / str(port["port"])
        state = rdma.after_colon(small_files.word(folder / "state"))
        lost = small_files.count(folder / "counters" / "link_downed")
        found[f"{device['name']}/{port['port']}"] = (state, lost)
    return found


def _known(before: _PortState | None, now: _PortState) -> _PortState:
    """Return the known state of a port: the old value if it cannot be read now; None for a counter that has fallen."""
    if before is None:
        return now
    fell = before[1] is not None and now[1] is not None and now[1] < before[1]
    return now[0] or before[0], None if fell else before[1] if now[1] is None else now[1]


def _named(context: Context) -> list[rdma.Device]:
    """Return the devices, read in full only after one came or went."""
    names = small_files.names(context.path(rdma.CLASS))
    if context.shared.get("rdma_names") != names:
        context.shared.clear()
        context.shared["rdma_names"] = names
    return rdma.devices(context)


def _lost(before: _PortState | None, state: str) -> bool:
    return before is not None and before[0] == "ACTIVE" and state != "ACTIVE"


def _flapped(before: _PortState | None, state: str, lost: int | None) -> bool:
    """Tell whether the port went down and up again between two readings."""
    if before is None or before[1] is None or lost is None:
        return False
    return before[0] == state == "ACTIVE" and lost > before[1]


def rdma_findings(verdicts: Verdicts, message: Message, moment: Moment) -> list[Seen]:
    """Return the loss of a port as it happens, and the checks' findings about ports that stay away."""
    results = message["results"]
    ports_said = next((r for r in results if r["name"] == "rdma_ports"), {"reason": "", "status": "pass"})
    found = []
    for name in message["down"]:
        reason = ports_said["reason"] if ports_said["reason"] == _OFF else "port_down"
        text = f"{name} has been switched off" if reason == _OFF else f"{name} lost its link"
        found.append(_port(name, reason, text, moment))
    found += [_port(name, "port_down", f"{name} lost its link for a moment", moment) for name in message["flapped"]]
    found += [_port(name, "", f"{name} is active again", moment) for name in message["up"]]
    for seen in verdicts.changes("rdma", results, moment):
        rule = seen.finding.urgency
        if seen.finding.kind == "rdma_ports" and seen.about.startswith("warn"):
            continue  # said above, for each port
        fails = seen.finding.kind == "rdma_ports" and seen.about.startswith("fail")
        if fails and "ACTIVE" not in message["states"].values():
            rule = urgency.ALL_RAILS.name
        found.append(seen._replace(finding=seen.finding._replace(urgency=rule)))
    return found


def _port(name: str, reason: str, text: str, moment: Moment) -> Seen:
    rule = (
        urgency.of_check("rdma_ports", reason, Status.WARN) if reason else job_urgency.UrgencyRule(job_urgency.NOTE, "")
    )
    return Seen(NodeFinding(0, moment.wall_s, "rdma", "port", rule.name, text, (), name), about=text)


def driver_there(context: Context) -> bool:
    """Return whether NVML may have something to say."""
    return bool(context.nvml_library) or Path("/proc/driver/nvidia/version").exists()
