"""Rules of the house that linters do not know: determinism below the drivers, small files, links that work."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "tidings").rglob("*.py"))
PURE = [path for path in SOURCES if path.relative_to(ROOT / "src" / "tidings").parts[0] in ("core", "protocols")]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

ORDERLESS = {"all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"}
"""Functions whose result does not depend on the order in which they are fed."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def is_set(node: ast.expr) -> bool:
    """Whether an expression is plainly a set."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    return called or isinstance(node, ast.Set | ast.SetComp)


def unordered(tree: ast.AST) -> Iterator[int]:
    """Lines that iterate over a set where the order can show."""
    harmless: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ORDERLESS:
                harmless |= {id(argument) for argument in node.args}
            elif node.func.id in ("list", "tuple", "iter", "enumerate") and node.args and is_set(node.args[0]):
                yield node.lineno
        if isinstance(node, ast.For) and is_set(node.iter):
            yield node.lineno
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp) and id(node) not in harmless:
            yield from (node.lineno for each in node.generators if is_set(each.iter))


def global_randomness(tree: ast.AST) -> Iterator[int]:
    """Lines that use the random module other than its class `Random`, or numpy's global generator."""
    allowed = {"random": "Random", "np.random": "Generator", "numpy.random": "Generator"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in allowed:
            if {each.name for each in node.names} != {allowed[node.module]}:
                yield node.lineno
        elif isinstance(node, ast.Attribute) and allowed.get(ast.unparse(node.value), node.attr) != node.attr:
            yield node.lineno


@pytest.mark.parametrize("path", PURE, ids=name_of)
def test_core_and_protocols_never_depend_on_set_order(path: Path) -> None:
    assert list(unordered(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize("path", PURE, ids=name_of)
def test_core_and_protocols_use_no_global_randomness(path: Path) -> None:
    assert list(global_randomness(ast.parse(path.read_text()))) == []


def test_the_rules_themselves_catch_what_they_should() -> None:
    bad = "for x in set(a): pass\nb = [x for x in {1, 2}]\nc = list(set(a))\nd = sorted(x for x in {1})\n"
    assert list(unordered(ast.parse(bad))) == [1, 2, 3]
    bad = "import random\nfrom random import choice\nrandom.random()\nrandom.Random(1)\nnp.random.rand()\n"
    assert sorted(global_randomness(ast.parse(bad))) == [2, 3, 5]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_functions_and_files_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 700
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [node.name for node in functions if node.end_lineno and node.end_lineno - node.lineno >= 70]
    assert long == []


def test_a_public_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name_of(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("path", [path for path in SOURCES if path.stem != "__init__"], ids=name_of)
def test_every_module_states_its_idea(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not (path.parent / link).exists()] == []


def test_every_pinned_package_is_pinned_by_version_alone() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", line)] == []
