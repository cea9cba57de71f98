"""What the commands that talk to a cluster share: where it is, and how bytes look in JSON."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from tidings.client.connection import Connection

T = TypeVar("T")

HIGHEST = (1 << 63) - 1  # as tidings.core.ids.NEVER: what a sequence number is kept in holds no more
DEFAULT_URL = "tidings://127.0.0.1:7400"


def is_utf8(text: str) -> bool:
    """Whether an argument was text: Python lets other bytes pass as lone surrogates, which nothing can send."""
    return not any("\ud800" <= each <= "\udfff" for each in text)


def _text(text: str | None) -> str | None:
    if text is not None and not is_utf8(text):
        raise typer.BadParameter(f"{text[:80]!r} is not UTF-8")
    return text


Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="TIDINGS_URL", callback=_text, help="Where the cluster is; more addresses after commas."
    ),
]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="TIDINGS_TOKEN", callback=_text, help="For clusters that ask for one."),
]


def with_client(url: str, token: str | None, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
    """Connect, do the work, disconnect."""
    from tidings.client.connection import connect
    from tidings.net.loop import run

    async def main() -> T:
        async with connect(url, token=token) as t:
            return await work(t)

    return run(main())


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
