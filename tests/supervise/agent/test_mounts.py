"""Which network file systems of a node do not answer: with a real FUSE file system whose server never does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from agent_stage import ROOT, AgentStage
from helpers import wait_until

from slurm_robust.supervise.agent import mounts
from slurm_robust.supervise.agent.messages import Hello
from slurm_robust.supervise.agent.mount_messages import CheckMounts, MountsChecked
from slurm_robust.supervise.agent.mounts import MountProbe, network_mounts

MOUNTINFO = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:30 / /home rw,relatime shared:2 master:1 - nfs4 server:/home rw,vers=4.2
31 22 0:31 / /data\040one rw,relatime - lustre mgs@o2ib:/scratch rw
32 22 0:32 / /sys/fs/fuse/connections rw - fusectl fusectl rw
33 22 0:33 / /mnt/s3 rw - fuse.goofys bucket rw
36 22 0:36 / /mnt/mine rw - fuse.sshfs me@host: rw,user_id=1000,group_id=1000
37 22 0:37 / /mnt/ours rw - fuse.sshfs root@host: rw,user_id=0,group_id=0,allow_other
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

ANSWERS = """
import ctypes, json, os, sys
sys.path.insert(0, sys.argv[1])
from slurm_robust.supervise.agent.mount_messages import CheckMounts
from slurm_robust.supervise.agent.mounts import MountProbe
dead, well, elsewhere = sys.argv[2:]
fds = [os.open("/dev/fuse", os.O_RDWR) for _ in range(2)]
for fd, place in zip(fds, (dead, well)):
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
    assert ctypes.CDLL(None, use_errno=True).mount(b"x", place.encode(), b"fuse", 0, options) == 0
os.close(fds[1])  # without a server a mount answers with an error
print(json.dumps(MountProbe(answer_s=1.0).answer("n1", CheckMounts(7, (dead, well, elsewhere)))), flush=True)
os.close(fds[0])
"""

needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/fuse").exists() or shutil.which("unshare") is None,
    reason="needs root, /dev/fuse and unshare",
)


def test_network_file_systems_are_told_from_local_ones() -> None:
    """By their type, each mount point once, with blanks in its path; not what an ordinary user mounted."""
    assert network_mounts(MOUNTINFO) == ("/home", "/data one", "/mnt/s3", "/mnt/ours")


def test_a_mount_that_answers_is_not_silent(tmp_path: Path) -> None:
    """Also one that is not there any more: that is an answer."""
    assert MountProbe().silent(("/", str(tmp_path), str(tmp_path / "gone"))) == ()


def slow_mount(monkeypatch: pytest.MonkeyPatch, after_s: float) -> list[str]:
    """Let every mount answer after this time; the returned list names the mounts that were asked."""
    asked: list[str] = []

    def ask(mount: str) -> int:
        asked.append(mount)
        return os.posix_spawn("/bin/sleep", ["sleep", str(after_s)], {})

    monkeypatch.setattr(mounts, "_ask", ask)
    return asked


def test_a_slow_mount_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file server that writes a checkpoint may take seconds to answer."""
    asked = slow_mount(monkeypatch, 3.0)
    assert MountProbe().silent(("/data",)) == ()
    assert asked == ["/data"]


def test_a_question_that_goes_on_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each capture asks, every few seconds: while no answer has come, another question would only pile up."""
    slow_mount(monkeypatch, 60.0)
    probe = MountProbe(answer_s=1.0)
    question = threading.Thread(target=probe.silent, args=(("/data",),))
    began_s = time.monotonic()
    question.start()
    wait_until(lambda: probe.busy, 5, "the question")
    question.join()
    assert time.monotonic() - began_s >= 1.0
    assert not probe.busy


@needs_mounts
def test_a_mount_that_never_answers_is_silent(tmp_path: Path) -> None:
    """Asked in children that hang in its place, within the time; once it answers (with an error), it is not silent."""
    command = ["unshare", "--mount", sys.executable, "-c", FROZEN, str(ROOT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    listed, first, again, took_s, at_last = json.loads(done.stdout)
    assert listed
    assert (first, again, at_last) == ([str(tmp_path)], [str(tmp_path)], [])
    assert took_s < 30


def test_an_agent_answers_for_network_mounts_of_its_own_node_alone(stage: AgentStage, tmp_path: Path) -> None:
    """A path that is no network mount here proves nothing about other nodes. Another node's question is ignored."""
    stage.start_agent()
    stage.receive(Hello)
    stage.send(CheckMounts(6, (str(tmp_path),), only="n2"))
    stage.send(CheckMounts(7, (str(tmp_path), "/")))
    began_s = time.monotonic()
    assert stage.receive(MountsChecked) == MountsChecked("n1", 7)
    assert time.monotonic() - began_s < 15


@needs_mounts
def test_a_network_mount_that_answers_is_told_apart_from_one_that_does_not(tmp_path: Path) -> None:
    """Of those asked for, those that this node has: one has answered, one is silent, a third is another node's."""
    folders = [tmp_path / name for name in ("dead", "well", "elsewhere")]
    for folder in folders:
        folder.mkdir()
    command = ["unshare", "--mount", sys.executable, "-c", ANSWERS, str(ROOT), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    assert json.loads(done.stdout) == ["n1", 7, [str(folders[0])], [str(folders[1])]]
