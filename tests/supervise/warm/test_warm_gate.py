"""A warm process becomes the program as a cold start would have it, when it is released, and at no other time."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from helpers import wait_until
from warm_programs import ATTEMPT, WarmPrograms, output  # type: ignore[import-not-found]

from slurm_robust.supervise.agent.clock import CLOCK
from slurm_robust.supervise.agent.ranks import ProcessFinder
from slurm_robust.supervise.warm import fitness

SHOW = """
import json, os, resource, signal, sys
paths = {fd: f"/proc/self/fd/{fd}" for fd in range(3, 40)}
low = {fd: os.readlink(path).split(":")[0] for fd, path in paths.items() if os.path.exists(path)}
print(json.dumps({
    "environ": dict(os.environ), "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(),
    "flags": list(sys.flags), "file": globals().get("__file__"), "spec": getattr(__spec__, "name", None), "low": low,
    "stdin": os.readlink("/proc/self/fd/0"), "input": sys.stdin.read(),
    "signals": {n: str(signal.getsignal(n)) for n in range(1, 32)}, "mask": sorted(signal.pthread_sigmask(0, ())),
    "limits": [resource.getrlimit(n) for n in range(10)], "umask": os.umask(0),
    "policy": os.sched_getscheduler(0), "cpus": sorted(os.sched_getaffinity(0)), "nice": os.nice(0),
    "oom": open("/proc/self/oom_score_adj").read(), "threads": len(os.listdir("/proc/self/task")),
    "sitecustomize": "sitecustomize" in sys.modules, "ours": sorted(m for m in sys.modules if "srobust" in m),
    "warnings": sys.warnoptions, "path0": sys.path[0], "excepthook": str(sys.excepthook == sys.__excepthook__),
}))
"""


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("options", [["-u", "-W", "ignore"], ["-c", SHOW], ["-m", "program"]], ids=lambda o: str(o[0]))
@pytest.mark.parametrize("user_path", [False, True])
def test_the_program_sees_what_a_cold_start_shows_it(
    programs: WarmPrograms, user_path: bool, options: list[str]
) -> None:
    """Environment, argv, sys.path, descriptors, signals, limits, scheduling: equal but for modules that are there."""
    if user_path:
        programs.module("mine", "")
    programs.program(SHOW)
    cold = output(programs.start(programs.environment(SROBUST_RESUME_STEP="40"), "--steps", "7", options=options))
    warm = programs.warm("--steps", "7", options=options)
    answer = programs.prepare(extra=["json", "decimal"])
    assert (answer.tasks, answer.refused) == ((0,), "")
    assert answer.memory_bytes > 1 << 20
    assert programs.go(SROBUST_RESUME_STEP="40").tasks == (0,)
    assert output(warm) == cold


@pytest.mark.usefixtures("patient")
def test_what_importing_prints_is_printed_when_the_program_starts(programs: WarmPrograms) -> None:
    """Not before: the training would seem to print it."""
    programs.module("talks", "import os\nprint('imported')\nos.write(2, b'warned\\n')\n")
    programs.program("import talks\nprint('{\"began\": 1}')")
    warm = programs.warm()
    programs.prepare(extra=["talks"])
    assert warm.stdout is not None
    os.set_blocking(warm.stdout.fileno(), False)
    assert warm.stdout.read() is None
    os.set_blocking(warm.stdout.fileno(), True)
    programs.go()
    out, err = warm.communicate(timeout=20)
    assert (out, err) == (b'imported\n{"began": 1}\n', b"warned\n")


@pytest.mark.usefixtures("patient")
def test_a_process_without_an_order_to_go_never_starts_the_program(programs: WarmPrograms) -> None:
    """It is ended by SIGTERM, as any step; and its program has not run."""
    programs.program("open('ran', 'w')")
    warm = programs.warm()
    programs.prepare()
    warm.send_signal(signal.SIGTERM)
    assert warm.wait(20) == -signal.SIGTERM
    assert not (programs.folder / "ran").exists()


def test_a_frozen_process_is_not_waited_for_and_does_not_start_late(programs: WarmPrograms) -> None:
    """SIGSTOP after it was ready; another step has been started when it goes on."""
    programs.program("open('ran', 'w')")
    warm = programs.warm()
    programs.prepare()
    warm.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    assert programs.ask("state").tasks == ()
    assert programs.go().tasks == ()
    assert time.monotonic() - began_s < 4 * programs.within_s
    until_s = time.monotonic() + programs.within_s
    wait_until(lambda: time.monotonic() > until_s, 5, "the end of the order's time")
    warm.send_signal(signal.SIGCONT)
    assert wait_until(lambda: programs.ask("state").tasks, 20, "its answer") == (0,)
    assert not (programs.folder / "ran").exists()


@pytest.mark.usefixtures("patient")
def test_a_process_that_is_not_ready_does_not_go(programs: WarmPrograms) -> None:
    """It has not imported what the others have."""
    programs.program("open('ran', 'w')")
    programs.warm()
    wait_until(lambda: programs.ask("memory").memory_bytes, 20, "the process")
    assert programs.go().tasks == ()
    programs.prepare()
    assert not (programs.folder / "ran").exists()


def test_a_process_whose_supervisor_is_gone_ends(programs: WarmPrograms) -> None:
    """No order for a while: a leftover of a killed launcher."""
    programs.program("open('ran', 'w')")
    env = programs.environment()
    hook = Path(fitness.HOOK)
    copy = programs.folder / "hook"
    copy.mkdir()
    for file in hook.glob("*.py"):
        (copy / file.name).write_text(file.read_text().replace("LEASE_S = 30.0", "LEASE_S = 0.3"))
    warm = programs.start({**env, "SROBUST_WARM": "wait", "PYTHONPATH": str(copy)})
    assert warm.wait(20) == 0
    assert not (programs.folder / "ran").exists()


@pytest.mark.usefixtures("patient")
def test_a_released_process_that_cannot_begin_has_failed(programs: WarmPrograms) -> None:
    """Here for a variable that no process can have. With 0, srun would report a training that is finished."""
    programs.program("open('ran', 'w')")
    warm = programs.warm()
    programs.prepare()
    assert programs.go(WRONG="a\0b").tasks == (0,)
    assert warm.wait(20) == 1
    assert not (programs.folder / "ran").exists()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import subprocess\nchild = subprocess.Popen(['sleep', '3'])", "starts a process"),
        ("raise SystemExit(3)", "ends the process"),
    ],
)
def test_a_module_that_does_harm_is_named(programs: WarmPrograms, text: str, why: str) -> None:
    """The process refuses; the supervisor tries again without that module."""
    programs.module("harmful", text)
    programs.program("print('{}')")
    programs.warm()
    answer = programs.prepare(extra=["harmful"])
    assert (answer.tasks, answer.offender) == ((), "harmful")
    assert why in answer.refused
    assert programs.go().tasks == ()


@pytest.mark.usefixtures("patient")
def test_libraries_are_imported_under_the_programs_own_variables(programs: WarmPrograms) -> None:
    """OMP_NUM_THREADS is set by the program before its imports, and read when a library is imported."""
    programs.module("slurm_robust", "import os\nseen = os.environ.get('OMP_NUM_THREADS')")
    origin = programs.folder / "modules" / "slurm_robust.py"
    show = "print(json.dumps([slurm_robust.seen, before]))"
    programs.program(f"import json, os\nbefore = os.environ.get('OMP_NUM_THREADS')\nimport slurm_robust\n{show}")
    warm = programs.warm()
    programs.prepare(f"e\tOMP_NUM_THREADS\t3\nm\tslurm_robust\t{origin}\n")
    programs.go()
    assert output(warm) == ["3", None]


@pytest.mark.usefixtures("patient")
def test_what_follows_a_variable_of_the_rank_is_left_to_the_program(programs: WarmPrograms) -> None:
    """CUDA_VISIBLE_DEVICES is another one on each rank: modules behind it may depend on it. A rendezvous may not."""
    decimal, fractions = (sys.modules.get(n) or __import__(n) for n in ("decimal", "fractions"))
    programs.program("import json, sys\nprint(json.dumps([n in sys.modules for n in ('decimal', 'fractions')]))")
    lines = [f"m\tdecimal\t{decimal.__file__}", "e\tCUDA_VISIBLE_DEVICES\t2", f"m\tfractions\t{fractions.__file__}"]
    first = programs.warm()
    programs.prepare("\n".join(["e\tMASTER_PORT\t2000", *lines]))
    programs.go()
    assert output(first) == [True, False]


@pytest.mark.usefixtures("patient")
def test_a_module_of_the_same_name_from_another_file_is_not_imported(programs: WarmPrograms) -> None:
    """The program has a `decimal.py` of its own, beside it: it must find that one."""
    (programs.folder / "decimal.py").write_text("own = True")
    programs.program("import decimal, json\nprint(json.dumps(decimal.own))")
    warm = programs.warm()
    programs.prepare(f"m\tdecimal\t{programs.folder}/decimal.py\n")
    programs.go()
    assert output(warm) is True


@pytest.mark.usefixtures("patient")
def test_two_files_of_one_module_are_refused(programs: WarmPrograms) -> None:
    """An installed module has imported the installed one, where in the program it found the user's."""
    programs.program("print('{}')")
    programs.warm()
    answer = programs.prepare(f"m\tjson\t{programs.folder}/json.py\n")
    assert "json is " in answer.refused
    assert answer.tasks == ()


@pytest.mark.usefixtures("patient")
def test_a_waiting_process_is_no_rank_until_it_is_released(programs: WarmPrograms) -> None:
    """Neither for who watches all of the job, nor for who watches its step by number; afterwards it is one."""
    programs.program("import sys, time\nprint('up', flush=True)\ntime.sleep(60)")
    warm = programs.warm()
    programs.prepare()
    all_of_it = ProcessFinder(programs.target._replace(attempt=""), CLOCK)
    by_number = ProcessFinder(programs.target._replace(attempt="step:3"), CLOCK)
    assert (all_of_it.processes(), by_number.processes()) == ([], [])
    programs.go()
    assert warm.stdout is not None
    assert warm.stdout.readline() == b"up\n"
    for finder in (all_of_it, by_number, ProcessFinder(programs.target._replace(attempt=ATTEMPT), CLOCK)):
        assert [p.pid for p in finder.processes()] == [warm.pid]
