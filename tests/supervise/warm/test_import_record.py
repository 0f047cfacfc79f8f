"""What a rank records of its imports, and that it starts as it would without that."""

from __future__ import annotations

import decimal
import subprocess
import sys
from pathlib import Path

from helpers import wait_until
from warm_programs import WarmPrograms, output  # type: ignore[import-not-found]

from slurm_robust.supervise.agent import packing, warm_processes
from slurm_robust.supervise.agent.clock import CLOCK
from slurm_robust.supervise.agent.ranks import ProcessFinder, group
from slurm_robust.supervise.agent.warm_messages import AskWarm
from slurm_robust.supervise.warm import fitness
from slurm_robust.supervise.warm.questions import unpacked


def recording(programs: WarmPrograms, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
    """The program, as a rank that records."""
    env = programs.environment(**more)
    return programs.start({**env, **fitness.environment("record", env)}, *arguments)


def test_modules_and_variables_are_recorded_in_their_order(programs: WarmPrograms) -> None:
    """With the files that they come from; what is not there is not recorded."""
    programs.program(
        "import os\ntry:\n    import not_there\nexcept ImportError: pass\n"
        "os.environ['OMP_NUM_THREADS'] = '3'\nimport decimal, fractions\ndel os.environ['LANG']\nimport colorsys\n"
        "import time\nprint('up', flush=True)\nimport tabnanny\ntime.sleep(60)"
    )
    rank = recording(programs)
    assert rank.stdout is not None
    assert rank.stdout.readline() == b"up\n"
    finder = ProcessFinder(programs.target._replace(attempt=""), CLOCK)
    ranks = group(finder.processes())
    request = AskWarm(4, "", "record")

    def recorded() -> str:
        """All of it: a module is written down when the next one is looked for, which is after the rank's word."""
        record = unpacked(warm_processes.answer(finder, request, ranks, CLOCK).packed)
        return record if "colorsys" in record else ""

    lines = [line.split("\t") for line in wait_until(recorded, 5, "the record").splitlines()]
    names = [line[1] for line in lines]
    assert ["e", "OMP_NUM_THREADS", "3"] in lines
    assert ["m", "decimal", decimal.__file__] in lines
    assert ["u", "LANG"] in lines
    order = ["OMP_NUM_THREADS", "decimal", "fractions", "LANG", "colorsys"]
    assert [name for name in names if name in order] == order
    assert "not_there" not in names


def test_a_rank_that_records_starts_as_it_would_without_that(programs: WarmPrograms) -> None:
    """Its environment, its sys.path, and the site's own sitecustomize, which finds the one behind it."""
    programs.module("sitecustomize", "import os, sys\nos.environ['SITE'] = str([p for p in sys.path if 'hook' in p])")
    programs.program(
        "import json, os, sys\nprint(json.dumps([dict(os.environ), sys.path, 'sitecustomize' in sys.modules]))"
    )
    cold = output(programs.start(programs.environment()))
    assert output(recording(programs)) == cold
    assert cold[0]["SITE"] == "[]"


def test_without_another_sitecustomize_none_was_imported(programs: WarmPrograms) -> None:
    """As a Python without one."""
    programs.program("import json, os, sys\nprint(json.dumps([dict(os.environ), sys.path, sorted(sys.modules)]))")
    cold = output(programs.start({**programs.environment(), "PYTHONNOUSERSITE": "1"}))
    rank = output(recording(programs, PYTHONNOUSERSITE="1"))
    assert rank[:2] == cold[:2]
    assert not [name for name in rank[2] if "srobust" in name or ("sitecustomize" in name and name not in cold[2])]


def test_a_child_of_a_rank_records_nothing(programs: WarmPrograms) -> None:
    """Neither a forked one, which would write into its parent's record, nor another program."""
    programs.program(
        "import json, os, subprocess, sys\npid = os.fork()\nif not pid:\n    import colorsys\n    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "other = subprocess.run([sys.executable, '-c', 'import sys; print(len(sys.meta_path))'], capture_output=True)\n"
        "import decimal, fractions\n"
        "fds = [fd for fd in range(900, 999) if os.path.lexists(f'/proc/self/fd/{fd}')]\n"
        "record = ''.join(os.pread(fd, 1 << 20, 0).decode() for fd in fds)\n"
        "print(json.dumps(['decimal' in record, 'colorsys' in record, other.stdout.decode()]))"
    )
    cold = subprocess.run(
        [sys.executable, "-c", "import sys; print(len(sys.meta_path))"],
        env=programs.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert output(recording(programs)) == [True, False, cold.stdout]


def test_a_python_is_probed(programs: WarmPrograms) -> None:
    """It exits at once where it loads our file, and runs on where it does not."""
    env = {**programs.environment(), **fitness.environment("probe", {})}
    for options, code in (([], fitness.PROBED), (["-u"], fitness.PROBED), (["-I"], 0), (["-S"], 0)):
        done = subprocess.run([sys.executable, *options, "-c", ""], env=env, check=False)
        assert done.returncode == code, options


def test_a_packed_record_is_read_as_text() -> None:
    """And what is none is empty."""
    assert unpacked(packing.pack("m\tjson\t/x\n")) == "m\tjson\t/x\n"
    assert unpacked(packing.pack({"m": 1})) == ""
    assert unpacked("?") == ""
    assert Path(fitness.HOOK, "sitecustomize.py").exists()
