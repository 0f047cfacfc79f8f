"""Facts as Parquet files, for other tools: one file for each table of `tables`, lists of nodes as lists."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Any

from slurm_robust.report.facts import Facts
from slurm_robust.report.tables import TABLES, FactColumn, FactTable, plain_text

_BATCH = 20_000
"""Rows that are in memory twice."""


class ParquetMissingError(Exception):
    """pyarrow is not installed; says how to install it."""


def write(folder: Path, facts: Facts) -> list[Path]:
    """Write one file for each table into the folder; returns their paths.

    Raises:
        ParquetMissingError: pyarrow is not installed.
        OSError: they cannot be written.
    """
    try:
        import pyarrow.parquet  # noqa: F401, PLC0415 (optional, and slow to load)
    except ImportError as error:
        raise ParquetMissingError(
            f"Parquet needs pyarrow, which is not installed ({error}); type: {sys.executable} -m pip install pyarrow"
        ) from None
    paths = [folder / f"{table.name}.parquet" for table in TABLES]
    for table, path in zip(TABLES, paths, strict=True):
        _write(table, path, facts)
    return paths


def _write(table: FactTable, path: Path, facts: Facts) -> None:
    import pyarrow as pa  # noqa: PLC0415 (see above)
    from pyarrow import parquet  # noqa: PLC0415

    kinds = {"str": pa.string(), "int": pa.int64(), "bool": pa.bool_(), "float": pa.float64()}
    kinds["tuple[str, ...]"] = pa.list_(pa.string())
    kinds["tuple[tuple[float, float | None], ...]"] = pa.list_(pa.list_(pa.float64()))
    schema = pa.schema([pa.field(c.name, kinds[c.kind], metadata={"meaning": c.meaning}) for c in table.columns])
    found = iter(table.rows(facts))
    with parquet.ParquetWriter(path, schema) as writer:
        while batch := list(islice(found, _BATCH)):
            arrays = [pa.array(_values(column, batch), kinds[column.kind]) for column in table.columns]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _values(column: FactColumn, batch: list[Any]) -> list[Any]:
    values = map(column.value, batch)
    return [plain_text(value) for value in values] if column.kind == "str" else list(values)
