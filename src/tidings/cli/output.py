"""What commands print: one JSON object or a table on stdout, progress on stderr and only for a person."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from rich.table import Table

Progress: TypeAlias = Callable[[int, int, str], None]
"""progress(done, total, text): called as often as convenient by whatever takes long."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]

BROKEN = 3
"""Exit code of a command that ran well but found that something does not hold."""


def not_built(what: str, instead: Iterable[str]) -> Exception:
    """What to raise where a name is known that has nothing behind it yet."""
    from tidings.client.errors import NotBuilt

    return NotBuilt(f"{what} is not built yet; there are {', '.join(instead)}")


def emit(result: Mapping[str, Any], as_json: bool, show: Callable[[], None]) -> None:
    """Print a result as one JSON object, or let ``show`` print it for a person."""
    if not as_json:
        show()
        return
    import msgspec

    encoded = msgspec.json.encode(result, enc_hook=lambda value: value.item())  # numpy scalars
    print(encoded.decode())


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under a title; numbers are aligned to the right."""
    from rich.console import Console

    Console(soft_wrap=False).print(grid(title, columns, rows))


def grid(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """What `table` prints."""
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    made = Table(title=title, title_justify="left")
    for at, column in enumerate(columns):
        numeric = all(isinstance(row[at], int | float) for row in cells)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        made.add_row(*[Text(number(cell)) for cell in row])
    return made


def number(value: Any) -> str:
    """A value as a person reads it: thousands separated, four digits of a fraction."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.4g}"


@contextmanager
def progress(text: str) -> Iterator[Progress | None]:
    """A progress bar on stderr when that is a terminal, otherwise None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times)
    # Points may take minutes; rich's own 30 s would never hold two of them, and without two there is no speed.
    with Bar(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=3600.0) as bar:
        task = bar.add_task(text, total=None)

        def report(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what or text)

        yield report
