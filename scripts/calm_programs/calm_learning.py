"""Shapes of learning other than all ranks in step: actors and learners, servers, farms, notebooks, pipelines."""

from __future__ import annotations

import importlib.util
import select
import socket
import subprocess
import sys
import threading
import time

from calm_kit import (
    DIR,
    LAUNCH,
    RANK,
    SIZE,
    by_sockets,
    by_torch,
    compute,
    connected,
    listening,
    nap,
    program,
    receive,
    say,
    script,
    seconds,
    train,
)  # fmt: skip


def _serve(messages: int) -> list[bytes]:
    """Take so many messages of eight bytes, each on a connection of its own, as they come."""
    server = listening("server")
    return [receive(server.accept()[0], 8) for _ in range(messages)]


def _send(text: str) -> None:
    connected("server").sendall(text.ljust(8).encode())


@program(55, tasks=3)
def actors_and_learner() -> None:
    """Reinforcement learning: the learner waits for episodes; the actors play for up to 55 s each."""
    if RANK == 0:
        for number, _ in enumerate(_serve(2 * (SIZE - 1))):
            say(f"learner update {number}")
        return
    for episode in (20, 55):
        compute(episode if RANK == 1 else episode / 2)
        _send(f"{RANK}")


@program(60)
def self_play() -> None:
    """Self-play: both ranks train, then play for a minute without a step, in turns."""
    meet = by_sockets()
    for _ in range(2):
        train(30, meet)
        compute(60)
        meet()


@program(60)
def generation_phase() -> None:
    """Learning from feedback: all ranks generate text for a minute between two phases of steps."""
    meet = by_torch()
    train(30, meet, show="ppo step {} loss {:.3f}")
    for _ in range(10):
        compute(6)
    train(30, meet, show="ppo step {} loss {:.3f}")


@program(90, tasks=3, noise=[r"\[W\d+", "RPC"])
def parameter_server() -> None:
    """A parameter server of torch.distributed.rpc: rank 0 stands in rpc.shutdown() while the workers train."""
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{DIR}/rpc.{LAUNCH}", rpc_timeout=300)
    rpc.init_rpc(f"rank{RANK}", rank=RANK, world_size=SIZE, rpc_backend_options=options)
    if RANK:
        for number in range(30):
            compute(0.4)
            rpc.rpc_sync("rank0", max, args=(number, 1))
            if number == 15:
                nap(45)
    rpc.shutdown()


@program(60, tasks=3)
def socket_parameter_server() -> None:
    """A server that answers gradients as they come; one worker is silent for a minute."""
    if RANK == 0:
        for number, _ in enumerate(_serve(40)):
            if number % 4 == 3:
                say(f"server version {number // 4}")
        return
    for number in range(20):
        compute(0.4)
        if number == 10 and RANK == 2:
            nap(60)
        _send(f"{RANK}")


@program(60, tasks=4)
def evaluation_farm() -> None:
    """Workers take checkpoints from a folder and evaluate them; most wait for the next one, and all end by a file."""
    for number in range(3):
        if RANK == 0:
            compute(20 if number else 60)
            (DIR / f"checkpoint-{number}").touch()
            say(f"checkpoint {number} written")
        else:
            while not (DIR / f"checkpoint-{number}").exists():
                nap(1)
            if number % 3 == RANK - 1:
                compute(10)
                say(f"checkpoint {number} evaluated by {RANK}")


@program(60, tasks=1, nodes=1)
def notebook() -> None:
    """Like papermill: a kernel in a child process, which executes cells sent by a socket; one takes a minute."""
    kernel = (
        "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "for cell in s.makefile('r'): exec(cell); s.sendall(b'ok\\n')"
    )
    server = listening("kernel")
    child = subprocess.Popen([sys.executable, "-c", kernel, str(server.getsockname())])
    peer = server.accept()[0]
    answers = peer.makefile("r")
    for number, cell in enumerate(["x = 1", f"import time; time.sleep({seconds(60)})", "x += 1"]):
        peer.sendall(f"{cell}\n".encode())
        answers.readline()
        say(f"Executing cell {number + 1}/3")
    peer.shutdown(socket.SHUT_RDWR)
    child.wait()


def _late_client(name: str) -> subprocess.Popen[bytes]:
    """Start a client that connects to a socket file after 400 s and says one word."""
    code = "import socket,sys,time; time.sleep(float(sys.argv[2])); s=socket.socket(socket.AF_UNIX)\n"
    code += "s.connect(sys.argv[1]); s.sendall(b'go')"
    return subprocess.Popen([sys.executable, "-c", code, f"{name}.{LAUNCH}", str(seconds(400))])


@program(400, tasks=1, nodes=1)
def idle_notebook() -> None:
    """A kernel waits for its user's next cell for longer than weak evidence is given; nothing was ever printed."""
    server = listening("cells")
    client = _late_client("cells")
    select.select([server], [], [])
    receive(server.accept()[0], 2)
    client.wait()


@program(400)
def idle_service() -> None:
    """An inference service: rank 0 waits for a request in select, the other one in a collective for rank 0."""
    meet = by_torch()
    if RANK == 0:
        server = listening("requests")
        client = _late_client("requests")
        select.select([server], [], [])
        receive(server.accept()[0], 2)
        client.wait()
    meet()


@program(60, tasks=3)
def federated_round() -> None:
    """Federated learning: the server waits for the slowest client of each round, for a minute."""
    meet = by_sockets()
    for number in range(3):
        compute(60 if RANK == 2 and number == 1 else 3)
        meet()
        if RANK == 0:
            say(f"round {number} aggregated")


@program(60, tasks=4)
def population() -> None:
    """Population based training: members exchange files, and the losers copy the winner after waiting for its file."""
    train(40, show="generation 0 step {} loss {:.3f}")
    if RANK == 3:
        compute(60)
        (DIR / "winner").write_text("weights")
    while not (DIR / "winner").exists():
        nap(0.5)
    train(40, show="generation 1 step {} loss {:.3f}")


@program(45, tasks=4)
def pipeline_bubbles() -> None:
    """A pipeline of four stages: each waits for the one before; the second recomputes for 45 s once."""
    own = listening(f"stage-{RANK}") if RANK else None
    onward = connected(f"stage-{RANK + 1}") if RANK + 1 < SIZE else None
    before = own.accept()[0] if own else None
    for number in range(25):
        if before:
            receive(before, 8)
        compute(45 if RANK == 1 and number == 15 else 0.4)
        if onward:
            onward.sendall(bytes(8))
        else:
            say(f"micro step {number} loss {1 / (number + 1):.3f}")


@program(60, noise=[r"Warning"])
def loader_workers() -> None:
    """A DataLoader with two workers, one of which reads a slow shard for a minute."""
    from torch.utils.data import DataLoader, Dataset

    class Shards(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 48

        def __getitem__(self, number: int) -> int:
            nap(60 if number == 30 and RANK == 1 else 0.3)
            return number

    meet = by_torch()
    for number, _ in enumerate(DataLoader(Shards(), batch_size=1, num_workers=2)):
        meet()
        if RANK == 0:
            say(f"step {number} loss {1 / (number + 1):.3f}")


@program(60)
def late_broadcast() -> None:
    """Rank 0 loads a model of many parts for a minute while rank 1 waits in a broadcast."""
    import torch
    import torch.distributed as dist

    meet = by_torch()
    train(40, meet)
    if RANK == 0:
        nap(60)
    dist.broadcast(torch.zeros(8), 0)
    train(8, meet)


@program(50, tasks=4)
def two_groups() -> None:
    """Two process groups: the ranks of one train on, those of the other stand in a barrier for 50 s."""
    import torch.distributed as dist

    by_torch()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[RANK // 2]
    train(40, lambda: dist.barrier(mine))
    if RANK == 2:
        nap(50)
    train(100 if RANK < 2 else 10, lambda: dist.barrier(mine))


@program(60)
def asynchronous_checkpoint() -> None:
    """A thread saves while the training goes on, and the next save waits for it."""
    meet = by_sockets()
    saving = threading.Thread(target=nap, args=(70,))
    train(40, meet)
    saving.start()
    train(20, meet)
    saving.join()
    train(8, meet)


@program(60)
def lonely_rank_0() -> None:
    """Rank 0 exports the model after training; the others wait in the last barrier for a minute."""
    meet = by_torch()
    train(20, meet)
    if RANK == 0:
        say("exporting")
        compute(60)
    meet()


@program(45, missing="" if importlib.util.find_spec("jax") else "JAX is not installed")
def jax_compilation() -> None:
    """JAX compiles its first step, and another one for a new shape."""
    import jax

    meet = by_sockets()
    for size in (100, 200):
        jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((size, size))).block_until_ready()
        nap(45)
        train(10, meet)


script(
    "elastic-torchrun", "learning", "`torchrun --standalone` restarts its two workers once by itself.", 30,
    "elastic=${me#* }/calm_elastic.py; "
    "$launch ${me% *} -m torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=2 $elastic",
    tasks=1, nodes=1, noise=["torch", "elastic", "^=", "^ ", "^-", "Error", "Traceback", "raise ", "^$", "Failures"],
)  # fmt: skip


@program(60, tasks=3)
def work_stealing() -> None:
    """Tasks of a queue on the file system: who has finished waits in vain for more, until the last one is done."""
    meet = by_sockets()
    begun_s = time.monotonic()
    for number in range(6):
        try:
            (DIR / f"task-{number}").open("x").close()
        except FileExistsError:
            continue
        compute(60 if number == 5 else 6)
    meet()
    if RANK == 0:
        say("all done" if time.monotonic() > begun_s else "never")
