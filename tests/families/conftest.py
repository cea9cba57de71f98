"""The toy family, known while a test runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tidings
from tidings.protocols.fabrics import family

PATHS = (Path(__file__).parents[1], Path(tidings.__file__).parents[1])


@pytest.fixture
def flooding(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the toy, registered here, and in processes that a test starts by TIDINGS_PLUGINS."""
    monkeypatch.setenv("TIDINGS_PLUGINS", "families.flooding")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, PATHS)))
    module = import_module("families.flooding")
    family._FAMILIES["flooding"] = module.FLOODING  # other tests of this process must not see it
    yield module
    del family._FAMILIES["flooding"]
