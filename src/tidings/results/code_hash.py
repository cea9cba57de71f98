"""Which code decides the outcome of a run: a hash over a module and everything of Tidings that it imports.

Results of campaigns and studies are kept under this hash. A run that was interrupted continues where it stopped, and a
run whose code has changed starts again. The imports are read from the sources, at every level and inside functions too,
so no list of modules is kept by hand. A string that names a module counts as an import, because that is how processes
are started (``python -m``). Imports for type checkers do not count.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import tidings

ROOT = Path(tidings.__file__).parent


def sources(*modules: str) -> list[Path]:
    """The files of these modules and of all modules of Tidings, and of their own packages, that they need, sorted."""
    return sorted(_found(*modules).values())


def _found(*modules: str) -> dict[str, Path]:
    """The same by name. A family from outside has a package of its own."""
    packages = {"tidings", *[module.partition(".")[0] for module in modules]}
    found: dict[str, Path] = {}
    left = list(modules)
    while left:
        name = left.pop()
        path = _file(name) if name.partition(".")[0] in packages and name not in found else None
        if path is None:
            continue
        found[name] = path
        left += _imports(path)
        parent = name.rpartition(".")[0]
        if parent:
            left.append(parent)
    return found


def _file(module: str) -> Path | None:
    """The source of a module; None if there is no such module."""
    package, *rest = module.split(".")
    if package != "tidings":
        return _file_outside(module)
    path = ROOT.joinpath(*rest)
    if (path / "__init__.py").is_file():
        return path / "__init__.py"
    return path.with_suffix(".py") if rest and path.with_suffix(".py").is_file() else None


def _file_outside(module: str) -> Path | None:
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # the name of a class in a module
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


@cache
def _imports(path: Path) -> tuple[str, ...]:
    """What a file imports, as dotted names; some of them may name a class instead of a module."""
    return tuple(dict.fromkeys(_names(ast.parse(path.read_text()))))


def _names(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (each.name for each in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
            yield from (f"{child.module}.{each.name}" for each in child.names)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str) and child.value.startswith("tidings."):
            yield child.value
        yield from _names(child)


def code_on_disk(*modules: str) -> str:
    """A hash of `sources` as they are now."""
    _imports.cache_clear()
    digest = hashlib.blake2b(digest_size=8)
    for name, path in sorted(_found(*modules).items()):
        digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def code(*modules: str) -> str:
    """The hash this process goes by: taken when it is first asked for, because later edits are not imported again."""
    return code_on_disk(*modules)
