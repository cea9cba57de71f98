"""What commands print: one JSON object or tables on stdout; progress on stderr, and only on a terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.table import Table

Progress: TypeAlias = Callable[[int, int, str], None]
"""progress(done, total, text): called now and then by work that takes long."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]

NUMERIC = r"|-?[\d,.]+(e[+-]\d+)?( [%MGT])?"
"""A cell that is a number, or empty."""

BROKEN = 3
"""Exit code of a command that ran well but found that something does not hold."""


def not_built(what: str, instead: Iterable[str]) -> Exception:
    """The error for a name that is known, but not built yet."""
    from tidings.client.errors import NotBuilt

    return NotBuilt(f"{what} is not built yet; there are {', '.join(instead)}")


class Listing(TyperGroup):
    """A group of commands whose error for an unknown one lists those that there are."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"there is no {ctx.info_name} {args[0]!r}: must be one of {', '.join(self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


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
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for at, column in enumerate(columns):
        numeric = all(re.fullmatch(NUMERIC, number(row[at])) for row in cells)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric)
    for row in cells:
        made.add_row(*[Text(number(cell)) for cell in row])
    return made


def number(value: Any) -> str:
    """A value as a person reads it: thousands separated, three digits of a fraction."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def short(value: int) -> str:
    """A large count in three digits: 1.23 M."""
    for unit, name in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if value >= unit:
            return f"{number(value / unit)} {name}"
    return number(value)


def count(many: int, what: str) -> str:
    """How many of something, in words: 1 seed, 2 seeds."""
    return f"{many:,} {what}" if many == 1 else f"{many:,} {what}s"


def say(text: str, indent: str = "  ") -> None:
    """Print a sentence; wrapped to the width of the terminal (or COLUMNS), the later lines indented."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        from shutil import get_terminal_size
        from textwrap import fill

        width = get_terminal_size().columns
        text = fill(text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    print(text)


def listed(values: Mapping[str, Any]) -> str:
    """Names with their values, on one line."""
    return ", ".join([f"{name.replace('_', ' ')} {number(value)}" for name, value in values.items()])


@contextmanager
def doing(text: str) -> Iterator[None]:
    """A spinner with a text on stderr when that is a terminal, otherwise nothing."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


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
