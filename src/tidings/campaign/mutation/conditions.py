"""Generated mutants: every condition of a module, named, and passed through a switch that may negate it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from typing import Any


def conditions(module: str, source: str) -> list[str]:
    """Names of a module's conditions, by number: file, function and expression, with a number if that recurs."""
    seen: Counter[str] = Counter()
    names = []
    for function, node in _conditions(ast.parse(source)):
        where = f"{module.rpartition('.')[2]}.py:{function}:{ast.unparse(node)}"
        seen[where] += 1
        names.append(where if seen[where] == 1 else f"{where}#{seen[where]}")
    return names


def switched(source: str) -> ast.Module:
    """The module with each condition passed through ``_condition(number, value)``, which may note or negate it."""
    tree = ast.parse(source)
    spots = {node: spot for spot, (_, node) in enumerate(_conditions(tree))}
    switched: ast.Module = ast.fix_missing_locations(_Switch(spots).visit(tree))
    return switched


def _conditions(tree: ast.Module) -> list[tuple[str, ast.expr]]:
    found = _Conditions()
    found.visit(tree)
    return found.conditions


class _Switch(ast.NodeTransformer):
    """Wraps each condition in a call, from the inside out."""

    def __init__(self, spots: Mapping[ast.expr, int]) -> None:
        self.spots = spots

    def visit(self, node: ast.AST) -> Any:
        spot = self.spots.get(node) if isinstance(node, ast.expr) else None
        visited = super().visit(node)
        if spot is None:
            return visited
        return ast.Call(ast.Name("_condition", ast.Load()), [ast.Constant(spot), visited], [])


class _Conditions(ast.NodeVisitor):
    """Collects conditions in the order of the source. Assertions and ``check`` are judges, and left alone."""

    def __init__(self) -> None:
        self.conditions: list[tuple[str, ast.expr]] = []
        self._scope: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name != "check":
            self._inside(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self._guard(node.test)
            self.generic_visit(node)

    visit_While = visit_IfExp = visit_If

    def visit_match_case(self, node: ast.match_case) -> None:
        if node.guard is not None:
            self._guard(node.guard)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._guard(test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        self._guard(node)  # again, if it is a whole guard, which counts once
        self.generic_visit(node)

    def _guard(self, node: ast.expr) -> None:
        while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            node = node.operand  # the negation of "not x" is that of x
        if all(known is not node for _, known in self.conditions):
            self.conditions.append((".".join(self._scope) or "module", node))

    def _inside(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()
