"""Do like cards run like firmware?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine.faults import Fault, conclude, some
from slurm_robust.nodecheck.sources import rdma


def probe(context: Context, options: Options) -> Facts:
    """Model, board and firmware of each card."""
    return {"devices": rdma.devices(context)}


def judge(facts: Facts, options: Options) -> Finding:
    """Warns: a mixture of firmware costs speed or sleep, and no job by itself."""
    boards: dict[tuple[str, str], dict[str, str]] = {}
    for device in facts["devices"]:
        own = {device["name"], device["board"]} - {""}
        if device["kind"] in ("card", "guest") and device["fw"] and own.isdisjoint(map(str, options["ignore"])):
            boards.setdefault((device["type"], device["board"]), {})[device["name"]] = device["fw"]
    evidence = {"firmware": {name: fw for cards in boards.values() for name, fw in cards.items()}}
    faults = []
    for (model, board), cards in boards.items():
        wanted = options["expected"].get(board) or options["expected"].get(model)
        usual, times = rdma.usual(cards.values())
        if wanted:
            odd = [name for name, fw in cards.items() if fw != str(wanted)]
            if odd:
                sentence = f"firmware of {some(odd)} is {cards[odd[0]]}, {wanted} is expected"
                faults.append(Fault.warn("firmware_unexpected", sentence, "`mlxfwmanager --query`; update it"))
        elif times < len(cards):
            odd = [name for name, fw in cards.items() if fw != usual]
            sentence = f"firmware of {some(odd)} is {cards[odd[0]]}, of other {model} {usual}"
            faults.append(Fault.warn("firmware_mixed", sentence, "`mlxfwmanager --query`; bring them in line"))
    if not boards:
        return Finding.skip("no_firmware", "no RDMA card reports its firmware", evidence)
    said = ", ".join(sorted({f"{model} {fw}" for (model, _), cards in boards.items() for fw in cards.values()}))
    return conclude(faults, Finding.passed("firmware_alike", f"firmware: {said}", evidence), evidence)


check = Check(
    **Check.parts_of(__name__),
    reads="/sys/class/infiniband/*/{fw_ver,hca_type,board_id}",
    cost="nothing beyond rdma_ports, whose reading it shares",
    lane=rdma.LANE,
    options={
        "expected": Option(
            {}, "firmware by board or model: {`MT_0000000838`: `28.41.1000`}", "ours: empty", items=(str,)
        ),
        "ignore": Option([], "list of devices or boards to ignore", "ours: none is"),
    },
)
