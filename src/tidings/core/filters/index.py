"""Which of many filters each row passes. (Placeholder until the index is merged.)"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tidings.core.filters import Columns, Filter


class FilterIndex:
    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._filters: dict[int, tuple[Filter, int]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._filters)

    def add(self, filter: Filter) -> int:
        id = self._ids.get(filter.text)
        if id is None:
            id = self._ids[filter.text] = self._next
            self._next += 1
            self._filters[id] = (filter, 0)
        self._filters[id] = (filter, self._filters[id][1] + 1)
        return id

    def remove(self, id: int) -> None:
        filter, uses = self._filters[id]
        if uses > 1:
            self._filters[id] = (filter, uses - 1)
        else:
            del self._filters[id], self._ids[filter.text]

    def match(self, rows: Columns) -> Iterator[tuple[int, np.ndarray]]:
        for id, (filter, _) in self._filters.items():
            places = np.flatnonzero(filter.mask(rows))
            if len(places):
                yield id, places
