"""Many tasks and steps, and jobs without Python: searches, arrays, monitors, steps side by side, bash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from calm_kit import DIR, RANK, by_sockets, compute, entry, nap, program, say, script, seconds, train


@program(0, tasks=4, code=3)
def search_with_failures() -> None:
    """A search: four independent tasks of different length, which end with 0, 1, 0 and 3."""
    train((12, 20, 90, 140)[RANK], show="trial step {} loss {:.3f}")
    sys.exit((0, 1, 0, 3)[RANK])


@program(60, tasks=4, code=1)
def search_with_a_crash() -> None:
    """A search of four; one task ends with an exception early, the others work on for two minutes and are silent."""
    if RANK == 2:
        train(6, show="")
        raise ValueError("learning rate 10: loss is not finite")
    compute(60 + 10 * RANK)
    say(f"trial {RANK} done")


@program(60, tasks=4)
def four_runs_of_rank_0() -> None:
    """Four separate trainings in one step, each with RANK=0 and WORLD_SIZE=1 in its environment."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    if "CALM_SECOND" not in os.environ:
        os.environ["CALM_SECOND"] = "1"
        sys.exit(subprocess.run([sys.executable, *sys.argv], check=False).returncode)
    for number in range(30):
        compute(0.4 * (1 + RANK))
        say(f"run {RANK} step {number} loss {1 / (number + 1):.3f}")
        if number == 10:
            nap(20 * RANK)


@program(60, tasks=4)
def ensemble_of_different_speed() -> None:
    """Four members of an ensemble; the fast one ends after 10 s, the slow one makes a step every minute."""
    for number in range((24, 12, 4, 2)[RANK]):
        compute((0.4, 3, 15, 60)[RANK])
        say(f"member {RANK} step {number + 1} loss 0.5")


script(
    "multi-prog-monitor", "tasks", "`--multi-prog`: a monitor that ends early with 2, beside two trainers.", 60,
    r"""printf '0 %s\n1-2 %s\n' "bash -c 'sleep $(scaled 10); exit 2'" "$me two-trainers" > prog.conf
$launch --multi-prog prog.conf""",
    tasks=3, code=2,
)  # fmt: skip


@entry
def two_trainers() -> None:
    """Train alone, with a pause of a minute."""
    train(12, show="")
    nap(60)
    say(f"trainer {RANK} done")


script(
    "multi-prog-server", "tasks", "`--multi-prog`: a parameter server, two workers, and a dashboard in bash.", 45,
    r"""printf '0-2 %s\n3 %s\n' "$me two-trainers" "bash -c 'while [ ! -e over ]; do sleep 1; done'" > prog.conf
(sleep $(scaled 100); touch over) & $launch --multi-prog prog.conf; wait""",
    tasks=4,
)  # fmt: skip
script(
    "steps-in-sequence", "tasks", "Four short steps one after the other; the third ends with 1 by design.", 20,
    "for code in 0 0 1 0; do $launch $mark bash -c \"sleep $(scaled 20); exit $code\"; echo step: $?; done",
)  # fmt: skip
script(
    "steps-in-parallel", "tasks", "Three steps side by side in the background, of different length.", 60,
    "for wait in 20 40 60; do $launch -N1 -n1 --exact $mark bash -c \"sleep $(scaled $wait); echo $wait\" & done; wait",
    tasks=3,
)  # fmt: skip
script(
    "array-of-trainings", "tasks", "An array of three one-task trainings with pauses.", 60,
    "$launch $me two-trainers", sbatch=("--array=0-2",), tasks=1, nodes=1,
)  # fmt: skip
script(
    "uneven-tasks", "tasks", "Five tasks on two nodes, three and two; the last one is late by 50 s.", 50,
    "$launch $me late-last-rank", tasks=5,
)  # fmt: skip


@entry
def late_last_rank() -> None:
    """Train; the last rank pauses for 50 s."""
    meet = by_sockets()
    train(40, meet)
    if RANK == 4:
        nap(50)
    train(8, meet)


@program(60, tasks=1, nodes=1)
def one_rank() -> None:
    """One rank on one node evaluates for a minute between its epochs."""
    train(40)
    compute(60)
    train(10)


@program(60, tasks=6, nodes=1)
def crowded_node() -> None:
    """Six ranks on one node with more busy processes than processors; rank 3 is late by a minute."""
    meet = by_sockets()
    helper = subprocess.Popen(["nice", "-n", "5", "sh", "-c", "while :; do :; done"]) if RANK == 0 else None
    train(10, meet)
    if RANK == 3:
        nap(60)
    train(5, meet)
    if helper:
        helper.kill()
        helper.wait()


script(
    "bash-loop", "tasks", "A bash loop that sleeps for a minute between its lines.", 60,
    "$launch $mark bash -c 'for i in 1 2 3; do echo round $i; sleep '$(scaled 60)'; done'",
)  # fmt: skip
script(
    "tar-and-gzip", "tasks", "Data preparation: tar | gzip through a slow pipe, without Python.", 60,
    "$launch $mark bash -c \"tar c /etc/passwd | gzip | (sleep $(scaled 60); gunzip) | tar t\"",
)  # fmt: skip
script(
    "awk-and-sort", "tasks", "awk and sort with steps in their output, which go up and down.", 45,
    "$launch $mark bash -c \"seq 40 | awk '{print \\\"step\\\", \\$1; fflush(); system(\\\"sleep $(scaled 0.5)\\\")}'; "
    "sleep $(scaled 45); seq 20 -1 1 | sed s/^/step:/\"",
)  # fmt: skip
script(
    "dd-with-dots", "tasks", "dd, whose only sign of life is a file that grows.", 60,
    "$launch $mark bash -c \"for i in \\$(seq 12); do "
    "dd if=/dev/zero bs=4k count=1 status=none; sleep $(scaled 5); done > \\$CALM_DIR/grows-\\$SLURM_PROCID\"",
)  # fmt: skip
script(
    "sleeping-shell", "tasks", "Two tasks that only sleep: a reservation of nodes for somebody who logs in.", 120,
    "$launch $mark sleep $(scaled 120)",
)  # fmt: skip
script(
    "waits-for-a-dependency", "tasks", "A step waits in bash until another step of the job has written its file.", 50,
    "$launch -N1 -n1 --exact $mark bash -c \"sleep $(scaled 50); echo made > made\" & "
    "$launch -N1 -n1 --exact $mark bash -c 'until [ -s made ]; do sleep 1; done; cat made'; wait",
)  # fmt: skip
script(
    "signal-of-slurm", "tasks", "`--signal=USR1@70`: Slurm signals the step before its time limit, and it saves.", 45,
    "$launch $me saves-on-signal", sbatch=("--time=2", "--signal=USR1@70"), least_scale=1.0,
)  # fmt: skip


@entry
def saves_on_signal() -> None:
    """Train until SIGUSR1, save for 45 s and end."""
    asked: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: asked.append(number))
    while not asked:
        train(1, show="")
    nap(45)
    say(f"rank {RANK} saved")


@program(60, tasks=3)
def late_third_node() -> None:
    """Rank 2 starts to train a minute after the others: its container image was not there."""
    if RANK == 2:
        nap(60)
    train(40, by_sockets())


@entry
def stdin_pipe() -> None:
    """Read lines and print them."""
    for line in sys.stdin:
        say("record", line.strip())


script(
    "records-by-a-pipe", "tasks", "The step reads records from the script's pipe, which is silent for a minute.", 60,
    "(seq 10; sleep $(scaled 60); seq 11 15) | $launch $me stdin-pipe", tasks=1, nodes=1,
)  # fmt: skip


@program(60, tasks=4)
def data_preparation() -> None:
    """Independent shards are converted; the tasks print counts of files and end at different times."""
    for shard in range(3 + RANK):
        time.sleep(seconds(15))
        (DIR / f"shard-{RANK}-{shard}").write_text("x")
        say(f"task {RANK}: {shard + 1}/{3 + RANK} files")
