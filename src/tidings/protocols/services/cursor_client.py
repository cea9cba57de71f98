"""The client's end of a cursor that no single subscription has: it opens it, moves it forward, and is superseded.

`Subscriber` keeps the cursor of a stream by itself, because its source and its cursor share a configuration.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from tidings.core.ids import StreamId
from tidings.protocols.kernel import Message
from tidings.protocols.services.cursors import CursorAt, OpenCursor, SaveCursor

Heard: TypeAlias = Literal["opened", "saved", "ask", "superseded", "refused", "nothing"]
"""What an answer means: ``ask`` says that `CursorClient.question` is to be sent again."""


class CursorClient:
    """One cursor. ``spread`` keeps two holders apart that open it at the same time."""

    def __init__(self, name: str, stream: StreamId, holder: int, spread: int) -> None:
        self.name = name
        self.stream = stream
        self.holder = holder
        self.opened = False
        self.forgotten = False  # the region has lost its memory: the cursor must be entered again
        self.processed = 0  # what the application wants saved
        self.saved = 0
        self._spread = spread

    @property
    def question(self) -> Message | None:
        """What the head is to be told; None: nothing."""
        if not self.opened or self.forgotten:
            return OpenCursor(self.name, self.stream, self.holder)
        if self.processed > self.saved:
            return SaveCursor(self.name, self.stream, self.holder, self.processed)
        return None

    def hear(self, at: CursorAt) -> Heard:
        """An answer of the head."""
        if at.refused:
            return "nothing" if self.opened else "refused"
        if at.holder > self.holder and self.opened:
            return "superseded"
        if at.holder > self.holder:  # the one that opens now is newer, whatever the clocks say
            self.holder = at.holder + 1 + self._spread
            return "ask"
        if at.holder < self.holder and not self.opened:
            return "nothing"  # of another time
        if at.holder < self.holder:
            self.forgotten = True
            self.saved = 0
            return "ask"
        self.forgotten = False
        self.saved = max(self.saved, at.horizon)
        if self.opened:
            return "saved"
        self.opened = True
        self.processed = at.horizon
        return "opened"
