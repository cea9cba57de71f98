"""docs/papers/sprinkler.md leads from the paper to the code: every id is there once, and what it names exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "papers" / "sprinkler.md").read_text()
MODULES = [
    *(
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in sorted((ROOT / "src/tidings/protocols").rglob("*.py"))
    ),
    *(f"tidings.core.{name}" for name in ("history", "span", "gc")),
]
SYMBOLS = {name: value for module in MODULES for name, value in vars(importlib.import_module(module)).items()}
MEMBERS = sorted(set(re.findall(r"`([A-Z][A-Za-z]+)\.([a-z_]+)`", TEXT)))
TESTS = sorted(set(re.findall(r"(?:paper|protocols|core|lab)/test_[a-z_]+\.py", TEXT)))


def test_every_mechanism_and_experiment_has_exactly_one_line() -> None:
    rows = re.findall(r"^\| ((?:A1\.|SP|E)\d+) \|", TEXT, re.MULTILINE)
    assert rows == [*(f"A1.{n}" for n in range(1, 48)), "E1", "E2", "E12", *(f"SP{n}" for n in range(1, 11))]


@pytest.mark.parametrize(("kind", "member"), MEMBERS)
def test_every_function_it_names_exists(kind: str, member: str) -> None:
    assert hasattr(SYMBOLS[kind], member)


def test_every_transition_of_figures_1_and_3_is_in_the_table() -> None:
    for name in ("addLocalEvent", "addRemoteEvent", "rcvAdvertisement", "deliverEvent", "receiveNotify"):
        assert re.search(rf"^\| [13] \| {name} \| `", TEXT, re.MULTILINE)
    for name in ("receiveRequest", "discardEvent", "requestFromProxy"):
        assert re.search(rf"^\| 3 \| {name} \| `", TEXT, re.MULTILINE)


@pytest.mark.parametrize("path", TESTS)
def test_every_test_file_it_names_exists(path: str) -> None:
    assert (ROOT / "tests" / path).exists()


def test_every_test_it_names_by_the_beginning_of_its_name_exists() -> None:
    code = "".join(path.read_text() for path in (ROOT / "tests" / "paper").glob("*.py"))
    missing = [name for name in re.findall(r"`(test_[a-z0-9_]+)\.\.\.`", TEXT) if f"def {name}" not in code]
    assert missing == []
