"""C programs: MPI-like rings and reductions over sockets, which wait by reading or by spinning."""

from __future__ import annotations

from calm_kit import script

script(
    "c-ring", "native", "A C program passes a token in a ring over sockets; one rank keeps it for a minute.", 60,
    "$launch $CALM_BIN/calm_ring $(scaled 60) 0", tasks=4,
)  # fmt: skip
script(
    "c-ring-that-spins", "native", "The same, and the waiting ranks poll with short sleeps.", 60,
    "$launch $CALM_BIN/calm_ring $(scaled 60) 1", tasks=3,
)  # fmt: skip
script(
    "c-ring-silent", "native", "A C program that prints nothing and ends with code 5 by design.", 60,
    "$launch $CALM_BIN/calm_ring $(scaled 60) 0 5 > /dev/null", code=5,
)  # fmt: skip
script(
    "c-in-the-kernel", "native", "A C task without Python that is in the kernel (vfork) for most of a minute.", 50,
    "$launch $mark $CALM_BIN/calm_vfork $(scaled 50)",
)  # fmt: skip
