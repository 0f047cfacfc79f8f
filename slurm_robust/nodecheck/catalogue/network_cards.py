"""Lists network cards by PCI id: their names, their fastest port, and the least rate of a healthy port.

Ids and speeds are public: pci.ids, and the makers' data sheets. mlx5 names its model after the device id in decimal
(`MT4129` is 0x1021), and a copied tree may have nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

MELLANOX, AMAZON, BROADCOM, INTEL, MICROSOFT = 0x15B3, 0x1D0F, 0x14E4, 0x8086, 0x1414


class Nic(NamedTuple):
    """A model.

    Attributes:
        name: The name that people use.
        max_gbps: The rate of its fastest port, Gb/s; 0 if the id does not tell (a virtual function of any card).
        floor_gbps: An active InfiniBand port below it has lost lanes or fallen back to an old speed; 0: no floor.
        fixed_rate: The driver reports a constant as its rate.
        virtual: A virtual function, as a guest sees it.
    """

    name: str
    max_gbps: int
    floor_gbps: int = 0
    fixed_rate: bool = False
    virtual: bool = False


UNKNOWN = Nic("unknown card", 0)
_MLX5_VF = "virtual function of a ConnectX"
_FLOOR = 25
"""The least rate of a healthy port. Below it are only SDR, DDR and single lanes of QDR or FDR, which are not used with
a ConnectX-4 or newer. QDR (40 Gb/s) may be an old storage fabric."""
_CARDS: dict[tuple[int, int], Nic] = {
    (MELLANOX, 0x1013): Nic("ConnectX-4", 100, _FLOOR),
    (MELLANOX, 0x1014): Nic(f"{_MLX5_VF}-4", 100, virtual=True),
    (MELLANOX, 0x1015): Nic("ConnectX-4 Lx", 50),
    (MELLANOX, 0x1016): Nic(f"{_MLX5_VF}-4 Lx", 50, virtual=True),
    (MELLANOX, 0x1017): Nic("ConnectX-5", 100, _FLOOR),
    (MELLANOX, 0x1018): Nic(f"{_MLX5_VF}-5", 100, virtual=True),
    (MELLANOX, 0x1019): Nic("ConnectX-5 Ex", 100, _FLOOR),
    (MELLANOX, 0x101A): Nic(f"{_MLX5_VF}-5 Ex", 100, virtual=True),
    (MELLANOX, 0x101B): Nic("ConnectX-6", 200, _FLOOR),
    (MELLANOX, 0x101C): Nic(f"{_MLX5_VF}-6", 200, virtual=True),
    (MELLANOX, 0x101D): Nic("ConnectX-6 Dx", 200),
    (MELLANOX, 0x101E): Nic(_MLX5_VF, 0, virtual=True),
    (MELLANOX, 0x101F): Nic("ConnectX-6 Lx", 50),
    (MELLANOX, 0x1021): Nic("ConnectX-7", 400, _FLOOR),
    (MELLANOX, 0x1023): Nic("ConnectX-8", 800, _FLOOR),
    (MELLANOX, 0x1025): Nic("ConnectX-9", 1600, _FLOOR),
    (MELLANOX, 0xA2D2): Nic("BlueField", 100, _FLOOR),
    (MELLANOX, 0xA2D6): Nic("BlueField-2", 200, _FLOOR),
    (MELLANOX, 0xA2DC): Nic("BlueField-3", 400, _FLOOR),
    # EFA of the first generations always says 100 Gb/s, independent of the instance's rate.
    (AMAZON, 0xEFA0): Nic("EFA", 100, fixed_rate=True, virtual=True),
    (AMAZON, 0xEFA1): Nic("EFA", 100, fixed_rate=True, virtual=True),
    (AMAZON, 0xEFA2): Nic("EFA v3", 0, fixed_rate=True, virtual=True),
    (AMAZON, 0xEFA3): Nic("EFA v4", 0, fixed_rate=True, virtual=True),
    (BROADCOM, 0x1750): Nic("BCM57508", 200),
    (BROADCOM, 0x1751): Nic("BCM57504", 200),
    (BROADCOM, 0x1752): Nic("BCM57502", 200),
    (BROADCOM, 0x1760): Nic("BCM57608", 400),
    (BROADCOM, 0x1806): Nic("virtual function of a BCM5750X", 200, virtual=True),
    (BROADCOM, 0x1807): Nic("virtual function of a BCM5750X", 200, virtual=True),
    (INTEL, 0x1452): Nic("IPU E2000 (Google)", 200, virtual=True),
    (INTEL, 0x145C): Nic("virtual function of an IPU E2000 (Google)", 200, virtual=True),
    (INTEL, 0x1592): Nic("E810-C", 100),
    (INTEL, 0x1593): Nic("E810-C", 100),
    (MICROSOFT, 0x00BA): Nic("MANA (Azure)", 0, fixed_rate=True, virtual=True),
}


def lookup(vendor: int | None, device: int | None, model: str = "") -> Nic:
    """Return the card of these PCI ids, else of mlx5's own model name (`MT4129`); `UNKNOWN` if neither is known."""
    if model.startswith("MT") and model[2:].isascii() and model[2:].isdigit() and len(model) < 10:
        vendor, device = vendor or MELLANOX, device or int(model[2:])
    if vendor is None or device is None:
        return UNKNOWN
    return _CARDS.get((vendor, device), UNKNOWN)
