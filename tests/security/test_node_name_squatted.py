"""Another user holds the name that a stop-time test takes on a node: the test runs all the same."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slurm_robust.stoptime.node_name import NodeName

NOBODY = 65534
SQUATTER = textwrap.dedent("""
    import os, socket, sys
    if len(sys.argv) > 3:
        os.setgroups([]); os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[3]))
    held = [socket.socket(socket.AF_UNIX) for _ in range(10)]
    for one, place in zip(held, ["", *(f".{place}" for place in range(9))]):
        one.bind(f"\\0srobust-test.c.{sys.argv[1]}{place}")
        if sys.argv[2] != "silent":
            one.listen(0)
        if sys.argv[2] == "full":
            for _ in range(3):
                held.append(socket.socket(socket.AF_UNIX))
                held[-1].setblocking(False)
                held[-1].connect_ex(one.getsockname())
    print(flush=True)
    sys.stdin.read()
""")


@contextmanager
def squatted(node: str, manner: str, uid: int | None) -> Iterator[None]:
    """Each name of the node is held, by this user if none is given."""
    argv = [sys.executable, "-c", SQUATTER, node, manner, *([str(uid)] if uid is not None else [])]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        yield
        process.kill()


@pytest.mark.parametrize("manner", ["silent", "listens", "full"])
def test_names_that_another_user_holds_count_for_nothing(manner: str) -> None:
    """Whether it listens there, does not, or lets nobody connect."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    node = f"squatted-{os.getpid()}"
    with squatted(node, manner, NOBODY):
        assert NodeName("c", node).take()


def test_a_test_of_this_user_is_seen() -> None:
    """Behind a stranger's first name, too."""
    node = f"taken-{os.getpid()}"
    first, second = NodeName("c", node), NodeName("c", node)
    assert first.take()
    assert not second.take()
    first.release()
    assert second.take()
    second.release()
    with squatted(node, "listens", None):
        assert not second.take()
