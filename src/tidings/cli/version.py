"""`tidings version`: which version this is, and what it runs on."""

from __future__ import annotations

from tidings.cli.output import Json, emit

EXAMPLE = "Example: tidings version --json"


def version(as_json: Json = False) -> None:
    """Print the version."""
    import platform
    from importlib.metadata import version as installed

    result = {"tidings": installed("tidings"), "python": platform.python_version()}
    emit(result, as_json, lambda: print(f"tidings {result['tidings']} (Python {result['python']})"))
