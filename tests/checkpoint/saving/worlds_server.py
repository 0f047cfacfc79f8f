"""Runs programs in a process that has imported torch, FSDP and the rest once: each is forked from it."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).parent)
_SERVER: list[subprocess.Popen[str]] = []


def in_worlds(program: str, timeout_s: float = 170.0) -> list[Any]:
    """Run a program that sees all of saving_worlds; what it `told`, in order. Its environment is this process's."""
    if not _SERVER:
        start = f"import sys; sys.path[:0] = [{HERE!r}]; import worlds_server; worlds_server.serve()"
        server = subprocess.Popen(
            [sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        _SERVER.append(server)
        atexit.register(_end)
    server = _SERVER[0]
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        request = {"program": program, "folder": folder, "env": dict(os.environ), "timeout_s": timeout_s}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code = server.stdout.readline().strip()
        told, said = (Path(folder, name).read_text() for name in ("told", "said"))
        assert code == "0", f"{code}: {said[-8000:]}"
        return [json.loads(line) for line in told.splitlines()]


def _end() -> None:
    for server in _SERVER:
        assert server.stdin is not None
        server.stdin.close()
        server.kill()  # it has nothing to tidy up, and torch takes its time to leave
        server.wait()


def serve() -> None:
    """Fork for each line of input."""
    import saving_worlds  # noqa: PLC0415 (what takes so long)

    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(request, vars(saving_worlds))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


def _run(request: dict[str, Any], names: dict[str, Any]) -> None:
    import signal  # noqa: PLC0415 (the test's own process does without)

    code = 1
    try:
        signal.alarm(int(request["timeout_s"]))
        os.environ.clear()
        os.environ.update(request["env"])
        told = Path(request["folder"], "told").open("w", buffering=1)  # noqa: SIM115 (ends with this process)
        said = os.open(Path(request["folder"], "said"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        names = {**names, "told": lambda value: told.write(json.dumps(value) + "\n")}
        exec(compile(request["program"], "program", "exec"), names)
        code = 0
    except BaseException:  # noqa: BLE001 (a forked child has nobody to raise to)
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
