"""What an edge wants of each stream: the filters of its subscriptions, at versions (Gryphon, dynamic subscriptions).

A filter that is new begins at the next version; several that come at once share one. One that nobody has used for a
while is taken out. A subscription needs the version from which on its filter has been in without a break.
"""

from __future__ import annotations

from collections.abc import Collection

from tidings.core.ids import NodeId, StreamId
from tidings.protocols.brokers.broker import SUMMARY
from tidings.protocols.brokers.broker_messages import Interest, Wanted
from tidings.protocols.kernel import Time

LINGER = 10.0  # seconds for which a filter stays in that nobody uses; ours: subscribers come back


class Wish:
    """Of one stream: its attributes, and since which version each filter is in."""

    __slots__ = ("attrs", "idle", "since")

    def __init__(self, attrs: str) -> None:
        self.attrs = attrs
        self.since: dict[str, int] = {}
        self.idle: dict[str, Time] = {}  # filters that nobody uses, and since when


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
        for known in ("", text):  # who gets everything gets this, too
            if known in wish.since:
                return wish.since[known]
        self._changed()
        if len(wish.since) >= SUMMARY:
            text = ""
        wish.since[text] = self.version
        return self.version

    def tidy(self, now: Time, used: dict[StreamId, Collection[str]]) -> list[StreamId]:
        """Take out what nobody has used for long. Returns the streams that nobody wants any more."""
        gone: list[StreamId] = []
        for stream, wish in list(self.wishes.items()):
            now_used = used.get(stream, ())
            idle = [text for text in wish.since if text not in now_used and (text or len(now_used) <= SUMMARY)]
            over = [text for text in idle if now - wish.idle.setdefault(text, now) >= LINGER]
            for text in over:
                del wish.since[text], wish.idle[text]
                self._changed()
            if "" in over:  # what it stood for is wanted one by one
                wish.since |= {text: self.version for text in now_used if text not in wish.since}
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
        interests: list[Interest] = []
        for stream in sorted(self.wishes):
            wish = self.wishes[stream]
            texts = ("",) if "" in wish.since else tuple(sorted(wish.since))
            interests.append((stream, wish.attrs, texts))
        return Wanted(self.me, self.me, self.life, self.version, tuple(interests))
