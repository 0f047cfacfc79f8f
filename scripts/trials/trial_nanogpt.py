"""The published nanoGPT, changed to run without a GPU and on a text of our own. Its training loop is unchanged."""

from __future__ import annotations

import array
import pickle
import shutil
import sysconfig
from pathlib import Path

_NO_GPU = {
    "device = f'cuda:{ddp_local_rank}'": "device = 'cpu'",
    "torch.cuda.set_device(device)": "pass",
    "device_ids=[ddp_local_rank]": "device_ids=None",
}


def lay_out(checkout: Path, folder: Path) -> None:
    """A copy that trains on CPUs, on the source of a module of Python's library.

    Raises:
        ValueError: the checkout is not the version that this was written for.
    """
    data = folder / "data" / "words"
    data.mkdir(parents=True)
    for name in ("model.py", "configurator.py"):
        shutil.copy(checkout / name, folder / name)
    text = (checkout / "train.py").read_text()
    for old, new in _NO_GPU.items():
        if text.count(old) != 1:
            raise ValueError(f"{checkout}/train.py has {old!r} {text.count(old)} times, and once is what is replaced")
        text = text.replace(old, new)
    (folder / "train.py").write_text(text)
    corpus = (Path(sysconfig.get_paths()["stdlib"]) / "argparse.py").read_text()
    letters = {letter: number for number, letter in enumerate(sorted(set(corpus)))}
    numbers = array.array("H", [letters[letter] for letter in corpus])
    cut = len(numbers) * 9 // 10
    (data / "train.bin").write_bytes(numbers[:cut].tobytes())
    (data / "val.bin").write_bytes(numbers[cut:].tobytes())
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(letters)}))
