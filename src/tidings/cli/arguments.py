"""What arguments may be: sequence numbers, text in UTF-8, and bytes written as JSON."""

from __future__ import annotations

from typing import Any

import typer

HIGHEST = (1 << 63) - 1  # as tidings.core.ids.NEVER: what a sequence number is kept in holds no more


def is_utf8(text: str) -> bool:
    """Whether an argument was text: Python lets other bytes pass as lone surrogates, which nothing can send."""
    return not any("\ud800" <= each <= "\udfff" for each in text)


def parse_text(text: str | None) -> str | None:
    """Refuse an option that is not UTF-8."""
    if text is not None and not is_utf8(text):
        raise typer.BadParameter(f"{text[:80]!r} is not UTF-8")
    return text


def to_json(value: bytes | None) -> str | dict[str, str] | None:
    """Bytes as JSON: the text they are in UTF-8, else {"hex": ...}."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def from_json(value: Any, what: str) -> bytes | None:
    """The bytes that `to_json` wrote; raises `BadInput`."""
    from tidings.core.errors import BadInput

    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and list(value) == ["hex"] and isinstance(value["hex"], str):
        try:
            return bytes.fromhex(value["hex"])
        except ValueError as error:
            raise BadInput(f"{what}: {value['hex'][:40]!r} is not hexadecimal") from error
    raise BadInput(f"{what}: {str(value)[:60]!r} is neither text nor an object with the one field hex")
