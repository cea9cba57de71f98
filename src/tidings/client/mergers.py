"""The merges of a client: subscriptions to several streams in one order, each fed by a replica (brokers/merging.py)."""

from __future__ import annotations

from tidings.client.cluster_view import ClusterView
from tidings.client.commands import SubscriberTick
from tidings.core.ids import StreamId
from tidings.protocols.brokers.merging import Merger, OpenMerge
from tidings.protocols.brokers.messages import SubscriptionSettings
from tidings.protocols.kernel import NOTHING, Effect, Effects, Input, SetTimer, Time


class Mergers:
    """All merges of one client, by id. ``parts``: which merge a subscription belongs to."""

    def __init__(self, view: ClusterView, settings: SubscriptionSettings) -> None:
        self._view = view
        self._settings = settings
        self.by_id: dict[int, Merger] = {}
        self.parts: dict[int, int] = {}

    def open(self, now: Time, command: OpenMerge) -> list[Effect]:
        """Begin to merge."""
        view = self._view
        merger = Merger(command, view.memberships[view.home], self._settings, view.offset + command.id)
        self.by_id[command.id] = merger
        self.parts |= dict.fromkeys(merger.parts, command.id)
        return self._ticking(command.id, merger.start(now))

    def close(self, id: int) -> Effects:
        """A merge is over."""
        merger = self._forget(id)
        return merger.close() if merger is not None and not merger.over else NOTHING

    def handle(self, now: Time, id: int, input: Input) -> list[Effect]:
        """Give an input to a merge, which may be one for a subscription of it."""
        merger = self.by_id[id]
        out = self._ticking(id, merger.handle(now, input))
        if merger.over:
            self._forget(id)
        return out

    def streams(self, id: int) -> list[StreamId]:
        """What a merge merges; nothing when it is over."""
        return list(self.by_id[id].by_stream) if id in self.by_id else []

    def _forget(self, id: int) -> Merger | None:
        merger = self.by_id.pop(id, None)
        if merger is not None:
            for part in merger.parts:
                del self.parts[part]
        return merger

    def _ticking(self, id: int, effects: Effects) -> list[Effect]:
        return [SetTimer(e.delay, SubscriberTick(id, e.timer)) if type(e) is SetTimer else e for e in effects]
