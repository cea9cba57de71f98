"""docs/papers/gryphon.md leads from the paper to the code: every id is there once, and what it names exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tidings.lab.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "papers" / "gryphon.md").read_text()
MODULES = [
    *(
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in sorted((ROOT / "src/tidings/protocols").rglob("*.py"))
    ),
    *(f"tidings.core.{name}" for name in ("curiosity", "knowledge")),
]
SYMBOLS = {name: value for module in MODULES for name, value in vars(importlib.import_module(module)).items()}
MEMBERS = sorted(set(re.findall(r"`([A-Z][A-Za-z]+)\.([a-z_]+)`", TEXT)))
TESTS = sorted(set(re.findall(r"(?:cluster|core|lab|laws|protocols|sim)/test_[a-z_]+\.py", TEXT)))
CLAIMS = {claim for each in EXPERIMENTS.values() if each.paper == "gryphon" for claim in each.claims}


def test_every_mechanism_and_experiment_has_exactly_one_line() -> None:
    rows = re.findall(r"^\| ((?:A2\.|GR)\d+) \|", TEXT, re.MULTILINE)
    assert rows == [*(f"A2.{n}" for n in range(1, 36)), *(f"GR{n}" for n in range(1, 8))]


def test_every_claim_has_its_verdict() -> None:
    rows = re.findall(r"^\| ((?:GR\d|ours|goal)\.[a-z0-9-]+) \|", TEXT, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == {claim.removeprefix("real.") for claim in CLAIMS}


@pytest.mark.parametrize(("kind", "member"), MEMBERS)
def test_every_function_it_names_exists(kind: str, member: str) -> None:
    found = SYMBOLS[kind]
    assert (
        hasattr(found, member)
        or f"self.{member}" in Path(importlib.import_module(found.__module__).__file__).read_text()
    )


@pytest.mark.parametrize("path", TESTS)
def test_every_test_file_it_names_exists(path: str) -> None:
    assert (ROOT / "tests" / path).exists()


def test_every_test_it_names_by_the_beginning_of_its_name_exists() -> None:
    code = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    missing = [name for name in re.findall(r"`(test_[a-z0-9_]+)\.\.\.`", TEXT) if f"def {name}" not in code]
    assert missing == []
