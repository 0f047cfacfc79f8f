"""Decides whether a drained node is repaired, and what the next step is, from what Slurm shows now. Pure.

The steps of a try: hold the node by its quarantine's reservation, carry the remedy out, resume the node into the
quarantine, have it checked in full. A GPU reset has no step of its own: the check's job resets the GPUs first. The
progress of a try is only remembered as a few times in its row of the journal; a daemon that was killed at any point
finds the missing step from these times and from what Slurm shows.

Slurm itself returns a node to service if its reboot failed (`ResumeTimeout`), and some versions also if its reboot went
well. So the reservation is made before the reboot, and the node is drained again if a try failed.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_robust.config.repair import RepairConfig
from slurm_robust.core.model import REASON_PREFIX
from slurm_robust.marks.remedy import Remedy, remedy_of, tagged, untagged
from slurm_robust.policy.cluster.node_states import drained_by_us, foreign
from slurm_robust.slurm.client import Node

DAY_S = 86400.0
REASON_MAX_CHARS = 200
TRIED = "; tried: "
"""Between a drain's evidence and the tries that did not help."""
_TRIED = re.compile(re.escape(TRIED) + r"([A-Za-z ]{1,20}), ([0-9]{1,3}) of [0-9]{1,3}")
BOOT_JITTER_S = 5
"""slurmd subtracts its uptime from its clock, so the time of one and the same boot moves by up to this much."""
REBOOTING = frozenset({"REBOOT_REQUESTED", "REBOOT_ISSUED"})


@dataclass(frozen=True)
class RepairTry:
    """One try to repair one node, as the journal has it.

    Attributes:
        number: A number that is unique in the journal.
        nth: The number of the try on this node within the window, from 1.
        drained_as: The node's reason when the try began.
        boot_at_s: When the node had booted by then, 0 if Slurm did not know.
        acted_at_s: When the remedy was first asked for; written before the call.
        asked_at_s: When Slurm had accepted the reboot. It is not asked for again, even if slurmctld forgot it.
        done_at_s: When the remedy was seen done.
        checked_at_s: When the node was given to its quarantine's full check.
        outcome: `passed`, `failed`, `left` (to a person); empty while the try is under way.
        why: The outcome in words.
        ended_at_s: When nothing was left to tidy up.
    """

    number: int
    node: str
    remedy: Remedy
    nth: int
    drained_as: str
    begun_at_s: float
    boot_at_s: int = 0
    acted_at_s: float | None = None
    asked_at_s: float | None = None
    done_at_s: float | None = None
    checked_at_s: float | None = None
    outcome: str = ""
    why: str = ""
    ended_at_s: float | None = None

    @property
    def key(self) -> str:
        """The name of the try in the journal's actions."""
        return f"repair.{self.node}.{self.number}"

    @property
    def evidence(self) -> str:
        """The evidence for which the node was first drained."""
        return untagged(self.drained_as).removeprefix(REASON_PREFIX).partition(TRIED)[0].strip()

    def tells(self, config: RepairConfig) -> str:
        """Return the number of the try and its remedy, such as `try 1 of 2: reboot`."""
        return f"try {self.nth} of {config.max_tries}: {self.remedy.words}"

    def reason(self, config: RepairConfig) -> str:
        """Return the node's reason while it is rebooted."""
        return self._reason(f"repair, {self.tells(config)}: {self.evidence}")

    def failed_reason(self, config: RepairConfig) -> str:
        """Return the reason of the drain after a try that failed."""
        return self._reason(f"{self.evidence}{self.tried(config)} ({self.why})")

    def tried(self, config: RepairConfig) -> str:
        """Return the words that are added to evidence that was found after this try."""
        return f"{TRIED}{self.remedy.words}, {self.nth} of {config.max_tries}"

    def _reason(self, text: str) -> str:
        # The remedy that the fault asks for stays, whichever was tried.
        return tagged(f"{REASON_PREFIX} {text}", remedy_of(self.drained_as), REASON_MAX_CHARS)


@dataclass(frozen=True)
class Site:
    """The facts beside the node itself that decide whether a repair may begin.

    Attributes:
        available: Remedies that can be carried out here.
        accounts: Accounts whose drains may be ours: the daemon's account, and root (prologs run as root).
        busy: Nodes on which a job runs or ends.
    """

    config: RepairConfig
    available: frozenset[Remedy]
    accounts: frozenset[str]
    busy: frozenset[str]
    now_s: float


@dataclass(frozen=True)
class Prospect:
    """The prospect of a drained node of ours: a remedy, or the reason why there is none.

    Attributes:
        hopeless: Waiting does not change the reason: a person has to look.
    """

    remedy: Remedy | None
    why: str = ""
    hopeless: bool = False
    nth: int = 0


def prospect(
    node: Node, drained_as: str, drained_at_s: float, past: Sequence[RepairTry], site: Site
) -> Prospect | None:
    """Return whether this node is to be repaired now; None if the node is not ours to repair.

    Args:
        node: The node as Slurm shows it.
        drained_as: The reason that the daemon knows of the node's drain; any other reason was written by a person.
        drained_at_s: When the node was drained, or last drained again, as far as the daemon knows.
        past: Tries on this node, oldest first.
        site: Everything else that the repair depends on.
    """
    changed = node.reason.strip() != drained_as.strip() or node.reason_user not in site.accounts | {""}
    if not drained_by_us(node) or changed:
        return None
    config = site.config
    counted = [t for t in past if t.outcome != "left" and t.begun_at_s > site.now_s - config.window_days * DAY_S]
    wanted = remedy_of(node.reason)
    if wanted is None:
        return Prospect(None, "no remedy is known for this fault", hopeless=True)
    # The journal may have been lost: the node's own reason remembers, too.
    recent = node.reason_at_s > site.now_s - config.window_days * DAY_S
    last, number = tried_before(node.reason) if recent else (None, 0)
    number = max(len(counted), number)
    if number >= config.max_tries:
        tries = f"{number} repair{'s' if number > 1 else ''} within {config.window_days:g} days"
        return Prospect(None, f"{tries} did not help", hopeless=True)
    tried = {t.remedy for t in counted} | ({last} if last is not None else set())
    remedy = _chosen(wanted, tried, site.available)
    if remedy is None:
        return Prospect(None, f"its remedy, {wanted.words}, cannot be carried out here", hopeless=True)
    if why := _not_yet(node, max(drained_at_s, float(node.reason_at_s)), site):
        return Prospect(None, why)
    return Prospect(remedy, nth=number + 1)


def tried_before(reason: str) -> tuple[Remedy | None, int]:
    """Return the last remedy that was tried and the number of tries, by a drain's reason; (None, 0) if it has none."""
    match = _TRIED.search(reason)
    remedy = next((known for known in Remedy if match is not None and known.words == match[1]), None)
    return (remedy, int(match[2])) if match is not None and remedy is not None else (None, 0)


def _not_yet(node: Node, drained_at_s: float, site: Site) -> str:
    """Return why a repair has to wait; empty if it may begin."""
    config = site.config
    reasons = (
        (
            node.name in site.busy or node.state in ("ALLOCATED", "MIXED") or "COMPLETING" in node.flags,
            "a job is still there",
        ),
        (bool(node.flags & {"MAINTENANCE", *REBOOTING}), "it is in maintenance, or about to be rebooted"),
        ("NOT_RESPONDING" in node.flags and not config.command, "it does not respond, so Slurm cannot reach it"),
        (site.now_s - drained_at_s < config.wait_s, f"it was drained less than {config.wait_s:g} s ago"),
    )
    return next((why for holds, why in reasons if holds), "")


def _chosen(wanted: Remedy, tried: set[Remedy], available: frozenset[Remedy]) -> Remedy | None:
    """Return the remedy, or a stronger one if it is not available or did not help; the strongest one is repeated."""
    order = list(Remedy)
    usable = [r for r in order[order.index(wanted) :] if r in available]
    return next((r for r in usable if r not in tried), usable[-1] if usable else None)


class RepairStep(str, enum.Enum):
    """The next step of a try."""

    HOLD = "hold"
    """Create or renew the reservation."""
    REBOOT = "reboot"
    COMMAND = "command"
    """Start the site's command."""
    DONE = "done"
    """Write down that the remedy was carried out."""
    RESUME = "resume"
    CHECK = "check"
    """Give the node to the quarantine's full check."""
    DECIDE = "decide"
    """Write the outcome down."""
    DRAIN = "drain"
    """Drain the node again."""
    RELEASE = "release"
    """Delete the reservation."""
    END = "end"
    WAIT = "wait"


@dataclass(frozen=True)
class Move:
    """The next step, with its reason; `outcome` belongs to DECIDE."""

    step: RepairStep
    why: str = ""
    outcome: str = ""


@dataclass(frozen=True)
class Scene:
    """The present facts for the next step of one try.

    Attributes:
        reserved: The quarantine's reservation exists, for long enough.
        quarantined: The node is in the daemon's list of quarantines: its full check is under way.
        permitted: Node scripts may drain the node.
        command: State of the site's command: `running`, `done`, or why it failed; empty if this daemon started none.
        busy: A job runs or ends on the node.
    """

    config: RepairConfig
    now_s: float
    reserved: bool = False
    quarantined: bool = False
    permitted: bool = False
    command: str = ""
    busy: bool = False


def next_move(t: RepairTry, node: Node | None, scene: Scene) -> Move:
    """Return what to do next for this try."""
    if t.outcome:
        return _tidied(t, node, scene)
    if node is None:
        return Move(RepairStep.DECIDE, "the node is not in Slurm any more", "left")
    taken = _taken_over(t, node, scene.config)
    if taken is not None:
        return taken
    if t.checked_at_s is not None:
        return _checked(node, scene)
    if not scene.reserved:
        return Move(RepairStep.HOLD)
    return _act(t, node, scene) if t.done_at_s is None else _resumed(t, node, scene)


def _taken_over(t: RepairTry, node: Node, config: RepairConfig) -> Move | None:
    """Return the end of the try if a person took the node over, or if it was drained for another fault meanwhile."""
    if foreign(node):
        return Move(RepairStep.DECIDE, f"somebody else drained the node: {node.reason}", "left")
    if t.checked_at_s is not None:
        return None
    changed = drained_by_us(node) and not _as_left(t, node, config)
    if t.done_at_s is not None:
        # The node was resumed, and drained by its own scripts before its check began.
        return Move(RepairStep.DECIDE, _found(node), "failed") if changed else None
    if changed:
        return Move(RepairStep.DECIDE, f"somebody changed the node's reason: {node.reason}", "left")
    if t.acted_at_s is None and not node.drained:
        return Move(RepairStep.DECIDE, "somebody resumed the node", "left")
    return None


def _as_left(t: RepairTry, node: Node, config: RepairConfig) -> bool:
    """Return whether the node's reason is the one that it was drained with, or the reboot's, with Slurm's own words."""
    reason, asked = node.reason.strip(), t.reason(config)
    return reason in (t.drained_as.strip(), asked) or reason.startswith(f"{asked} : reboot")


def _found(node: Node) -> str:
    return untagged(node.reason).removeprefix(REASON_PREFIX).strip()


def _act(t: RepairTry, node: Node, scene: Scene) -> Move:
    """Return the next step until the remedy is done."""
    if scene.busy and t.acted_at_s is None:
        return Move(RepairStep.WAIT, "a job is still there")
    if scene.config.command:
        return _command(t, scene)
    return Move(RepairStep.DONE) if t.remedy is Remedy.GPU_RESET else _reboot(t, node, scene)


def _command(t: RepairTry, scene: Scene) -> Move:
    if scene.command == "running":
        return Move(RepairStep.WAIT, "the site's command runs")
    if scene.command == "done":
        return Move(RepairStep.DONE)
    if scene.command:
        return Move(RepairStep.DECIDE, scene.command, "failed")
    if t.acted_at_s is None:
        return Move(RepairStep.COMMAND)
    # The daemon that started it was killed, and the command perhaps with it. It is not run twice: the check decides.
    return Move(RepairStep.DONE, "the daemon was restarted while the site's command ran")


def _reboot(t: RepairTry, node: Node, scene: Scene) -> Move:
    silent = "NOT_RESPONDING" in node.flags
    booted = node.boot_at_s > (t.boot_at_s or int(t.begun_at_s)) + BOOT_JITTER_S
    if booted and not silent and not node.flags & REBOOTING:
        return Move(RepairStep.DONE)
    if scene.now_s - (t.acted_at_s or t.begun_at_s) > scene.config.timeout_s:
        return Move(RepairStep.DECIDE, f"not back after {scene.config.timeout_s / 60:.3g} min", "failed")
    accepted = t.asked_at_s is not None or node.reason.strip().startswith(t.reason(scene.config))
    if t.acted_at_s is not None and not node.drained and not silent:
        return Move(RepairStep.DECIDE, "Slurm gave it back without a reboot", "failed")
    if accepted or silent or node.flags & REBOOTING:
        return Move(RepairStep.WAIT, "rebooting" if accepted else "it does not respond")
    return Move(RepairStep.REBOOT)


def _resumed(t: RepairTry, node: Node, scene: Scene) -> Move:
    """Return the next step after the remedy, until the full check."""
    if node.usable:
        return Move(RepairStep.CHECK)
    if scene.now_s - (t.done_at_s or t.begun_at_s) > scene.config.timeout_s:
        return Move(RepairStep.DECIDE, "no job can start there", "failed")
    if "NOT_RESPONDING" in node.flags or node.flags & REBOOTING or not node.drained:
        return Move(RepairStep.WAIT, "it does not respond yet")
    if scene.permitted and t.remedy is Remedy.GPU_RESET:
        # The node's scripts still see the fault, which the check's job will remove.
        return Move(RepairStep.WAIT, "its scripts may still drain it")
    return Move(RepairStep.RESUME, "into its quarantine, to be checked")


def _checked(node: Node, scene: Scene) -> Move:
    if scene.quarantined:
        return Move(RepairStep.WAIT, "its full check is under way")
    if drained_by_us(node):
        return Move(RepairStep.DECIDE, _found(node), "failed")
    return Move(RepairStep.DECIDE, "passed its full check", "passed")


def _tidied(t: RepairTry, node: Node | None, scene: Scene) -> Move:
    """Return what is left to do after the outcome: a node that was not repaired stays drained but not reserved."""
    ours = node is not None and not foreign(node)
    if node is not None and ours and t.outcome == "failed" and not _stays_out(t, node, scene.config):
        return Move(RepairStep.DRAIN, t.failed_reason(scene.config))
    if scene.reserved and not scene.quarantined:
        return Move(RepairStep.RELEASE, t.why)
    return Move(RepairStep.WAIT if scene.quarantined else RepairStep.END, t.why)


def _stays_out(t: RepairTry, node: Node, config: RepairConfig) -> bool:
    """Return whether the node is drained with a reason that tells of this try, not only DOWN, which Slurm may end."""
    told = t.tried(config) in node.reason or not _as_left(t, node, config)
    return "DRAIN" in node.flags and drained_by_us(node) and told
