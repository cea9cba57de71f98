"""What an edge wants of each stream: the filters of its subscriptions, at versions (Gryphon, dynamic subscriptions).

A filter that is new begins at the next version; several that come at once share one. One that nobody has used for a
while is taken out. A subscription needs the version from which on its filter has been in without a break.
"""

from __future__ import annotations

from collections.abc import Collection

from tidings.core.filters.summary import Summary
from tidings.core.ids import NodeId, StreamId
from tidings.protocols.brokers.broker import SUMMARY, filter_of
from tidings.protocols.brokers.broker_messages import Wanted
from tidings.protocols.kernel import Time

LINGER = 10.0  # seconds for which a filter stays in that nobody uses; ours: subscribers come back


class Wish:
    """Of one stream: its attributes, and since which version each filter is in."""

    __slots__ = ("attrs", "idle", "since", "summary")

    def __init__(self, attrs: str) -> None:
        self.attrs = attrs
        self.since: dict[str, int] = {}
        self.idle: dict[str, Time] = {}  # filters that nobody uses, and since when
        self.summary: Summary | None = None  # of all of them, where they are too many

    def enter(self, text: str, version: int) -> None:
        """A filter is in from this version on."""
        self.since[text] = version
        if self.summary is not None:
            self.summary.add(filter_of(self.attrs, text))

    def remove(self, text: str) -> None:
        """A filter is out."""
        del self.since[text], self.idle[text]
        self.summary = None

    @property
    def asked(self) -> tuple[str, ...]:
        """The filters that the brokers above are told."""
        if "" in self.since:
            return ("",)
        if len(self.since) <= SUMMARY:
            return tuple(sorted(self.since))
        if self.summary is None:
            self.summary = Summary()
            for text in self.since:
                self.summary.add(filter_of(self.attrs, text))
        return (self.summary.text,)


class Interests:
    """Of one edge, in one of its lives."""

    def __init__(self, me: NodeId, life: int) -> None:
        self.me = me
        self.life = life
        self.version = 1  # the newest that is in use
        self.news = False  # it has not been told
        self.wishes: dict[StreamId, Wish] = {}

    def add(self, stream: StreamId, attrs: str, text: str) -> int:
        """A subscription wants this. Returns the version that it needs."""
        wish = self.wishes.setdefault(stream, Wish(attrs))
        wish.idle.pop(text, None)
        if text not in wish.since:
            if "" not in wish.since:  # who gets everything gets this already
                self._changed()
            wish.enter(text, wish.since.get("", self.version))
        return wish.since[text]

    def tidy(self, now: Time, used: dict[StreamId, Collection[str]]) -> list[StreamId]:
        """Take out what nobody has used for long. Returns the streams that nobody wants any more."""
        gone: list[StreamId] = []
        for stream, wish in list(self.wishes.items()):
            now_used = used.get(stream, ())
            for text in [text for text in wish.since if text not in now_used]:
                if now - wish.idle.setdefault(text, now) >= LINGER:
                    wish.remove(text)
                    self._changed()
            if not wish.since:
                del self.wishes[stream]
                gone.append(stream)
        return gone

    def _changed(self) -> None:
        if not self.news:
            self.news = True
            self.version += 1

    def brief(self) -> Wanted:
        """The same for who knows this version."""
        return Wanted(self.me, self.me, self.life, self.version, None)

    def told(self) -> Wanted:
        """What the brokers above are told."""
        self.news = False
        interests = [(stream, self.wishes[stream].attrs, self.wishes[stream].asked) for stream in sorted(self.wishes)]
        return Wanted(self.me, self.me, self.life, self.version, tuple(interests))
