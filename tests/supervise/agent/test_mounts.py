"""Which network file systems of a node do not answer: with a real FUSE file system whose server never does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_stage import ROOT, AgentStage

from slurm_robust.supervise.agent.messages import Hello
from slurm_robust.supervise.agent.mount_messages import CheckMounts, MountsChecked
from slurm_robust.supervise.agent.mounts import MountProbe, network_mounts

MOUNTINFO = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:30 / /home rw,relatime shared:2 master:1 - nfs4 server:/home rw,vers=4.2
31 22 0:31 / /data\040one rw,relatime - lustre mgs@o2ib:/scratch rw
32 22 0:32 / /sys/fs/fuse/connections rw - fusectl fusectl rw
33 22 0:33 / /mnt/s3 rw - fuse.goofys bucket rw
34 22 0:34 / /home rw - nfs4 server:/home2 rw
garbage
35
"""

FROZEN = """
import ctypes, json, os, sys, time
sys.path.insert(0, sys.argv[1])
from slurm_robust.supervise.agent.mounts import MountProbe, network_mounts
from slurm_robust.supervise.agent import procfs
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
assert ctypes.CDLL(None, use_errno=True).mount(b"dead", sys.argv[2].encode(), b"fuse", 0, options) == 0
probe = MountProbe()
began_s = time.monotonic()
mounts = network_mounts(procfs.mountinfo())
first = probe.silent((sys.argv[2], "/"), 1.0)
again = probe.silent((sys.argv[2],), 0.2)
took_s = time.monotonic() - began_s
os.close(fd)
deadline_s = time.monotonic() + 30
while probe.silent((sys.argv[2],)) and time.monotonic() < deadline_s:
    pass
print(json.dumps([sys.argv[2] in mounts, first, again, took_s, probe.silent((sys.argv[2],))]))
"""


def test_network_file_systems_are_told_from_local_ones() -> None:
    """By their type, each mount point once, with blanks in its path; a line that is none is left out."""
    assert network_mounts(MOUNTINFO) == ("/home", "/data one", "/mnt/s3")


def test_a_mount_that_answers_is_not_silent(tmp_path: Path) -> None:
    """Also one that is not there any more: that is an answer."""
    assert MountProbe().silent(("/", str(tmp_path), str(tmp_path / "gone"))) == ()


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="needs root and /dev/fuse")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_mount_that_never_answers_is_silent(tmp_path: Path) -> None:
    """Asked in children that hang in its place, within the time; once it answers (with an error), it is not silent."""
    command = ["unshare", "--mount", sys.executable, "-c", FROZEN, str(ROOT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    listed, first, again, took_s, at_last = json.loads(done.stdout)
    assert listed
    assert (first, again, at_last) == ([str(tmp_path)], [str(tmp_path)], [])
    assert took_s < 30


def test_an_agent_answers_which_mounts_are_silent(stage: AgentStage, tmp_path: Path) -> None:
    """Of those that it is asked for; a question to another node is not its own."""
    stage.start_agent()
    stage.receive(Hello)
    stage.send(CheckMounts(6, (str(tmp_path),), only="n2"))
    stage.send(CheckMounts(7, (str(tmp_path),)))
    began_s = time.monotonic()
    assert stage.receive(MountsChecked) == MountsChecked("n1", 7, (), (str(tmp_path),))
    assert time.monotonic() - began_s < 15
