"""Ranks that ended, and the last lines that they wrote, for tables of tests."""

from slurm_robust.localize.evidence import RankExit

NODES = {n: f"n{n}" for n in range(4)}


def raised(exception: str) -> tuple[str, ...]:
    """A traceback that ends with this line."""
    return ("Traceback (most recent call last):", '  File "/home/u/train.py", line 3, in main', exception)


def chain(first: str, then: str) -> tuple[str, ...]:
    """One exception while another one was handled."""
    return (
        *raised(first),
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        *raised(then),
    )


GLOO_LOST = (
    "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5003. GLHF!",
)
GLOO_SIZES = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    (
        "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 2048 vs 4. "
        "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?"
    ),
)
PORT_TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 26159, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
NCCL_TIMEOUT = ("[rank2]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",)


def died(
    number: int, at_s: float = 100.0, code: int | None = 1, sig: int = 0, *lines: str, oom: bool = False
) -> RankExit:
    """Rank `number` on its node ended."""
    return RankExit(number, f"n{number}", at_s, None if sig else code, sig, lines, oom)
