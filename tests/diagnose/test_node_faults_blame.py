"""A GPU's complaint beside a CUDA error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_robust.core.model import Signal, SignalKind
from slurm_robust.diagnose.findings import findings
from slurm_robust.diagnose.reported_gpu_faults import with_node_fault
from slurm_robust.diagnose.root import diagnose
from slurm_robust.diagnose.taxonomy import Blame
from slurm_robust.nodecheck.catalogue import xids

CUDA = diagnose(findings(["RuntimeError: CUDA error: unspecified launch failure"]))


def fault(detail: str, at_s: float = 100.0, node: str = "n2", kind: SignalKind = SignalKind.NODE_FAULT) -> Signal:
    """What a node reported."""
    return Signal(kind, at_s, "kernel", detail, node)


@pytest.mark.parametrize(
    "detail",
    [
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
        "XID 48: double-bit ECC error",
        "Xid 46 GPU stopped processing",
    ],
)
def test_the_node_is_to_blame_beside_an_xid(detail: str) -> None:
    """The category stays, and the reason names node, fault and distance."""
    told, why = with_node_fault(CUDA, "n2", 130.0, [fault("disk slow"), fault(detail)])
    assert (told.blame, told.category.name, told.root) == (Blame.NODE, "cuda_error", CUDA.root)
    assert "node n2 reported" in why
    assert "30 s before the error" in why


@pytest.mark.parametrize(
    ("signal", "node"),
    [
        (fault("Xid 79", at_s=191.0), "n2"),
        (fault("Xid 79", node="n3"), "n2"),
        (fault("Xid 79"), ""),
        (fault("NVRM: Xid (PCI:0000:3b:00): 31, pid=2, MMU Fault"), "n2"),
        (fault("Xid 13"), "n2"),
        (fault("link flapped 79 times"), "n2"),
        (fault("Xid 79", kind=SignalKind.AGENT_SILENT), "n2"),
    ],
    ids=["later", "elsewhere", "no node known", "program's", "program's too", "no xid", "no fault"],
)
def test_nothing_else_changes_the_blame(signal: Signal, node: str) -> None:
    """Another minute, another node, or an XID that programs cause."""
    assert with_node_fault(CUDA, node, 130.0, [signal]) == (CUDA, "")


def test_other_failures_are_left_alone() -> None:
    """A `KeyError` beside an XID is still the program's."""
    key = diagnose(findings(["KeyError: 'x'"]))
    assert with_node_fault(key, "n2", 100.0, [fault("Xid 79")]) == (key, "")


@pytest.mark.parametrize(
    "code", sorted(code for code, xid in xids.CATALOGUE.items() if xid.grade is xids.XidGrade.FAIL)
)
def test_each_xid_that_makes_a_node_unfit_is_the_nodes_here_too(code: int) -> None:
    """The node checks have the catalogue; the rules for logs must not say less."""
    told, why = with_node_fault(CUDA, "n2", 130.0, [fault(f"Xid {code} {xids.CATALOGUE[code].name}")])
    assert told.blame is Blame.NODE, why


@pytest.mark.parametrize(
    ("evidence", "blamed"),
    [
        ({"urgency": "now", "code": 119, "gpus": (3,)}, True),
        ({"urgency": "now", "code": None, "gpus": (3,)}, True),
        ({"urgency": "at_next_checkpoint", "code": 63, "gpus": (3,)}, True),
        ({"urgency": "at_next_checkpoint", "code": None, "gpus": (3,)}, False),
        ({"urgency": "if_repeated", "code": None, "gpus": ()}, False),
        ({"urgency": "note", "code": 79, "gpus": (3,)}, False),
    ],
    ids=["xid", "lost gpu", "remap", "hot", "link", "application"],
)
def test_what_the_nodes_own_catalogue_says_decides(evidence: dict[str, object], blamed: bool) -> None:
    """A finding of the node's service: its urgency is the judgement, whatever its sentence says."""
    found = replace(fault("Xid 79: as a program causes it"), evidence=evidence)
    told, _ = with_node_fault(CUDA, "n2", 130.0, [found])
    assert (told.blame is Blame.NODE) is blamed
