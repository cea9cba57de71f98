"""docs/guide/client.md has every error that a client can be told."""

from __future__ import annotations

import re
from pathlib import Path

from tidings.client import errors

GUIDE = Path(__file__).parents[2] / "docs/guide/client.md"


def test_the_guide_lists_every_error_once() -> None:
    table = GUIDE.read_text().partition("## Errors")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert sorted(listed) == sorted(errors.__all__)


def test_the_module_exports_every_error_it_defines() -> None:
    defined = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)}
    assert defined <= set(errors.__all__)
