"""A node whose kernel log a test writes, and lines of NVIDIA's drivers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slurm_robust.nodecheck.checks.gpu import xid
from slurm_robust.nodecheck.engine import runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Finding

GPU = "0000:9b:00"


def line(code: int, words: str = "", gpu: str = GPU) -> str:
    """A line of NVIDIA's driver."""
    return f"NVRM: Xid (PCI:{gpu}): {code}, pid=4711, name=python, {words}\n"


class Node:
    """A node with a kernel log and a boot id that a test writes."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "kmsg"
        self.log.write_text("Linux version 6.1.0\n")
        self.boot = folder / "root/proc/sys/kernel/random/boot_id"
        self.boot.parent.mkdir(parents=True)
        self.boot.write_text("boot-1\n")
        self.context = Context("n1", "prolog", folder / "root", self.log, folder / "cache")

    def say(self, text: str) -> None:
        """Append to the kernel log."""
        with self.log.open("a") as file:
            file.write(text)

    def look(self, stage: str = "prolog") -> Finding:
        """Run the check once."""
        report = runner.run([xid.check], replace(self.context, stage=stage), {}, 10.0)
        return report.results[0].finding


def with_two_gpus(node: Node) -> Node:
    """The node has two GPUs whose device files are 0 and 1, and the job was given the second."""
    for minor, name in enumerate(("0000:1b:00.0", "0000:9b:00.0")):
        folder = node.context.root / "proc/driver/nvidia/gpus" / name
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\n")
    node.context = replace(node.context, job_gpus=(1,))
    return node
