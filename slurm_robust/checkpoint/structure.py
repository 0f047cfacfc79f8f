"""What a file's own structure tells without a seal: truncated, empty, or a record whose CRC does not fit.

Nothing is ever unpickled here.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

_CHUNK_BYTES = 1 << 20


def structural_problems(folder: Path, names: list[str]) -> list[tuple[str, str]]:
    """(file, what) for every file of `names` that is damaged; formats that are not known pass unless they are empty.

    Raises:
        OSError: a file cannot be read.
    """
    return [(name, what) for name in names if (what := _problem(folder / name))]


def _problem(path: Path) -> str:
    if path.stat().st_size == 0:
        # Markers of other tools are empty on purpose; weights never are.
        return "empty file" if path.suffix in (".pt", ".pth", ".bin", ".ckpt", ".distcp", ".safetensors") else ""
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            return ""
    return _zip_problem(path)


def _zip_problem(path: Path) -> str:
    """A torch.save file is a zip: its directory stands at the end, and each record has a CRC."""
    record = ""
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                record = entry.filename
                with archive.open(entry) as file:
                    while file.read(_CHUNK_BYTES):
                        pass
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError) as error:
        return f"record {record!r}: {error}" if record else f"zip directory: {error} (truncated?)"
    return ""
