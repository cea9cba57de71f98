"""Lakes made by hand: rows as an archive would have written them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidings.protocols.services.catalog import StreamDef
from tidings.spark.lake import COLUMNS, Commit, Cover, Lake, hashed, schema_of

DAY = 86_400_000_000
NOON = 1_800_000_000_000_000  # microseconds


def rows_for(definition: StreamDef, seqs: Sequence[int], **columns: Any) -> pa.Table:
    """Rows of a stream with these numbers; by default payload and key say the number."""
    count = len(seqs)
    made: dict[str, Any] = {
        "stream": [definition.id] * count,
        "seq": list(seqs),
        "key": [b"%d" % (seq % 5) for seq in seqs],
        "payload": [b"%d" % seq for seq in seqs],
        "published_at": [NOON + 1000 * (seq // 3) for seq in seqs],
        "region": [definition.region] * count,
        "publisher": ["p"] * count,
        "pub_seq": list(seqs),
        "kind": ["data"] * count,
        "_session": [7] * count,
        "_tick": [100 * (seq // 3) for seq in seqs],
    } | columns
    schema = schema_of(definition)
    arrays = [
        pa.array(made[name], kind) if name in made else pa.nulls(count, kind)
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    assert set(made) <= {*COLUMNS, *schema.names}
    return hashed(pa.Table.from_arrays(arrays, schema=schema))


def append(
    lake: Lake,
    definition: StreamDef,
    seqs: Sequence[int],
    cover: tuple[int, int, int] | None = None,
    ends: Mapping[str, int] | None = None,
    **columns: Any,
) -> None:
    """Add rows to a lake; they cover what they span, as published, unless told otherwise."""
    lo, hi, asof = cover or (seqs[0], seqs[-1] + 1, seqs[0])
    name = f"made-{lake.snapshot().id:06d}"
    files = tuple(lake.write(rows_for(definition, seqs, **columns), name)) if seqs else ()
    covers = (Cover(definition.id, lo, hi, asof),)
    commit = Commit(kind="append", at=0.0, add=files, coverage=covers, definitions=(definition,), ends=dict(ends or {}))
    lake.commit(lambda _: commit)


def lake_in(folder: Path) -> Lake:
    return Lake(folder / "lake")
