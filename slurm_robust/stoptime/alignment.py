"""Finds GPUs that compute other bits than like GPUs. Pure.

Every device runs the same training step of a small reference model several times. Devices of one hardware and library
class must get equal bits each time. If more than half of a class agree, their bits are right. A device on which the
step crashes is broken if two other devices of the run get a result; any other error does not tell anything about the
device.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_LEAST_OTHERS = 2


@dataclass(frozen=True)
class StepDigests:
    """The results of one device.

    Attributes:
        device: `cpu`, `cuda:0` and so on.
        hardware: Model, processors and library versions: devices with an equal text must compute equal bits.
        digests: One for each repeat, over all products, parameters and gradients.
    """

    node: str
    device: str
    hardware: str
    digests: tuple[str, ...]

    @property
    def name(self) -> str:
        """`n3 cuda:0`."""
        return f"{self.node} {self.device}"

    @property
    def steady(self) -> bool:
        """Whether all repeats gave equal bits."""
        return len(set(self.digests)) == 1


@dataclass(frozen=True)
class StepError:
    """The reason why one device has no digests."""

    node: str
    device: str
    text: str


CRASHES = ("cuda error", "test's process died of", "cublas_status_execution_failed", "cublas_status_internal_error")
"""Errors of a step on a broken device, in small letters. A lack of memory or of time does not count as a crash."""


@dataclass(frozen=True)
class AlignmentVerdict:
    """The verdict on all digests.

    Attributes:
        broken: Nodes with a device that computes wrong bits → the reason.
        undecided: Nodes of a class that does not agree and has no majority → the reason.
        untested: Nodes whose class has no other device to compare with → the reason.
    """

    broken: dict[str, str] = field(default_factory=dict)
    undecided: dict[tuple[str, ...], str] = field(default_factory=dict)
    untested: dict[str, str] = field(default_factory=dict)


def judge(found: Sequence[StepDigests], errors: Iterable[StepError] = ()) -> AlignmentVerdict:
    """Compare the digests within each class, and weigh the errors of devices without digests."""
    classes: dict[str, list[StepDigests]] = defaultdict(list)
    for device in found:
        classes[device.hardware].append(device)
    verdict = AlignmentVerdict()
    for error in errors:
        crashed = any(words in error.text.lower() for words in CRASHES) and "out of memory" not in error.text.lower()
        into = verdict.broken if crashed and len(found) >= _LEAST_OTHERS else verdict.untested
        into[error.node] = f"{error.device}: {error.text}"
    for hardware, devices in classes.items():
        _judge_class(hardware, devices, verdict)
    for node in verdict.broken:
        verdict.untested.pop(node, None)
    return verdict


def _judge_class(hardware: str, devices: list[StepDigests], verdict: AlignmentVerdict) -> None:
    if len(devices) == 1 and devices[0].steady:
        verdict.untested[devices[0].node] = f"no other device of its class to compare with ({hardware})"
        return
    votes = Counter(device.digests[0] for device in devices if device.steady)
    right, count = votes.most_common(1)[0] if votes else ("", 0)
    if 2 * count <= len(devices):
        nodes = tuple(dict.fromkeys(device.node for device in devices))
        verdict.undecided[nodes] = (
            f"{len(devices)} devices of one class came to {len(votes)} different results, and none has a majority "
            f"({hardware})"
        )
        return
    wrong: dict[str, list[str]] = defaultdict(list)
    for device in devices:
        if set(device.digests) != {right}:
            wrong[device.node].append(_difference(device, right))
    for node, differences in wrong.items():
        sentence = f"{'; '.join(differences)}; {count} of {len(devices)} devices of its class agree ({hardware})"
        verdict.broken[node] = "; ".join(filter(None, (verdict.broken.get(node, ""), sentence)))


def _difference(device: StepDigests, right: str) -> str:
    times = sum(digest != right for digest in device.digests)
    return f"{device.device} computed other bits in {times} of {len(device.digests)} steps"
