"""Does one RDMA port lose or repeat far more than its sisters?

What a card repeats and drops comes from its cable, its switch, the fabric's load, or from peers and applications that
died. All rails of a node see the load and the dead peers alike, so a port is compared with its sisters. Counters that
only applications raise are not looked at: `rnr_nak_retry_err` and `out_of_buffer` (a receiver that posts too little),
`req_cqe_error` and its kin (a job that was killed), `duplicate_request` (a peer's repetition).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import check_state, counters, windows
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude
from slurm_robust.nodecheck.sources import rdma, small_files

LIMITS: Mapping[str, int] = {
    # mlx5 (NVIDIA's "Understanding mlx5 counters" and the kernel's commits say what each counts)
    "out_of_sequence": 10_000,
    "packet_seq_err": 10_000,
    "implied_nak_seq_err": 10_000,
    "local_ack_timeout_err": 1_000,
    "req_transport_retries_exceeded": 100,
    "roce_adp_retrans": 10_000,
    "roce_adp_retrans_to": 1_000,
    "roce_slow_restart": 10_000,
    "rx_icrc_encapsulated": 100,
    # EFA
    "retrans_timeout_events": 1_000,
    "unresponsive_remote_events": 100,
    "impaired_remote_conn_events": 100,
    "rx_drops": 1_000,
    # bnxt_re
    "to_retransmits": 1_000,
    "max_retry_exceeded": 100,
    "oos_drop_count": 10_000,
    "rx_roce_error_pkts": 100,
    "rx_roce_discards": 1_000,
    # MANA
    "requester_timeout": 1_000,
    "requester_retries_exceeded": 100,
}
"""Counter → events an hour below which it is not judged."""
_ALONE = 10
"""A port without sisters to compare with must exceed the limit so many times."""


def probe(context: Context, options: Options) -> Facts:
    """Read the transport counters of every port, the ports that are sisters, and the counts of earlier runs."""
    counts: dict[str, int] = {}
    ports = list(rdma.all_ports(rdma.devices(context), options["ignore"]))
    for device, port in ports:
        folder = context.path(rdma.CLASS) / device["name"]
        own = folder / "ports" / str(port["port"]) / "hw_counters"
        # One listing tells which of the counters this driver has.
        where = own if small_files.is_folder(own) else folder / "hw_counters"
        for name in sorted(LIMITS.keys() & set(small_files.names(where))):
            if (value := small_files.count(where / name)) is not None:
                counts[f"{rdma.label(device, port)} {name}"] = value
    return {
        "counts": counts,
        "sisters": [[rdma.label(device, port) for device, port in group] for group in rdma.sisters(ports)],
        **check_state.since(context, check.name),
    }


def median(numbers: Sequence[float]) -> float:
    """Return the median, the upper of two middle values; `statistics` costs more to load than this whole check."""
    return sorted(numbers)[len(numbers) // 2]


def _odd(rates: Mapping[str, float], group: Sequence[str], options: Options) -> Faults:
    """Ports of a group of sisters that have far more of something than the others."""
    for counter, usual in LIMITS.items():
        limit = options["warn_per_hour"].get(counter, usual)
        said = {port: rates[f"{port} {counter}"] for port in group if f"{port} {counter}" in rates}
        if not isinstance(limit, (int, float)) or limit <= 0:
            continue
        for port, rate in said.items():
            others = [other for name, other in said.items() if name != port]
            bound = max(limit, options["odd_factor"] * median(others)) if len(others) >= 2 else _ALONE * limit
            if rate > bound:
                beside = f", its sisters {median(others):.0f}" if others else ""
                sentence = f"{port} has {rate:.0f} {counter} an hour{beside}"
                remedy = f"look at cable, switch port and congestion settings of {port}: `mlxlink`, `ethtool -S`"
                yield Fault.warn(f"odd_{counter}", sentence, remedy)


def judge(facts: Facts, options: Options) -> Finding:
    """Warn of a port unlike its sisters; never fail, since the node alone cannot tell whose fault it is."""
    if not facts["counts"]:
        return Finding.skip("no_counters", "no RDMA port has transport counters")
    rates = {name: windows.per_hour(growth) for name, growth in windows.grown(facts, counters.HOUR_S).items()}
    evidence: Facts = {"per_hour": {name: round(rate, 1) for name, rate in rates.items() if rate}}
    first = not windows.samples_of(facts["kept"], facts["boot_id"])
    said = "transport counters are read for the first time in this boot" if first else "no RDMA port stands out"
    healthy = Finding.passed("first_look" if first else "alike", said, evidence)
    return conclude((fault for group in facts["sisters"] for fault in _odd(rates, group, options)), healthy, evidence)


remember = windows.remember_for(counters.HOUR_S)
check = Check(
    **Check.parts_of(__name__),
    reads="/sys/class/infiniband/*/ports/*/hw_counters, compared with the runs of the last hour",
    cost="up to nine small reads a port, which the driver answers together: 1–5 ms",
    lane=rdma.LANE,
    options={
        "warn_per_hour": Option(
            {},
            "events an hour up to which nobody looks further, instead of "
            + ", ".join(f"{name} {limit}" for name, limit in LIMITS.items())
            + "; 0 passes a counter over",
            "ours: congestion alone makes thousands an hour on a busy fabric, a time-out is rarer, a bad checksum rare",
            keys=tuple(LIMITS),
        ),
        "odd_factor": Option(10.0, "times its sisters' median from which a port is odd", "ours: rails share load"),
        "ignore": Option([], "list of devices, ports, interfaces or boards to ignore", "ours: none is"),
    },
)
