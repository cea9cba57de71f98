"""The publisher and the sink client of each region that a client writes to."""

from __future__ import annotations

import random

from tidings.client.cluster_view import ClusterView
from tidings.client.commands import Broken, PublisherTick, Sinking, SinkingTick
from tidings.core.ids import RegionId
from tidings.protocols.kernel import Deliver, Effect, Effects, Input, SetTimer, Time
from tidings.protocols.services.publishing import Failed, Publisher, PublishSettings
from tidings.protocols.services.sink_client import SinkClient
from tidings.protocols.services.sinks import SinkSettings


class RegionPublishers:
    """Publishers under one ``name``; a session that was idle for ``renew`` seconds is replaced by a new one."""

    def __init__(
        self, name: str, view: ClusterView, settings: PublishSettings, renew: float, rng: random.Random
    ) -> None:
        self._name = name
        self._view = view
        self._settings = settings
        self._renew = renew
        self._rng = rng
        self.by_region: dict[RegionId, Publisher] = {}
        self._used: dict[RegionId, Time] = {}  # when a publisher was last given something
        self._generations: dict[RegionId, int] = {}  # how many publishers a region has had

    def begin(self, now: Time, region: RegionId) -> list[Effect]:
        """Something will be published to a region: see that there is a publisher with a session the head knows."""
        publisher = self.by_region.get(region)
        out: list[Effect] = []
        if publisher is None or self._stale(now, region, publisher):
            nonce = self._rng.getrandbits(48)
            publisher = Publisher(self._name, self._view.memberships[region], self._settings, nonce)
            self.by_region[region] = publisher
            self._generations[region] = self._generations.get(region, 0) + 1
            out = self._translated(region, publisher.start(now))
        self._used[region] = now
        return out

    def handle(self, now: Time, region: RegionId, input: Input) -> list[Effect]:
        """Give an input to the publisher of a region."""
        return self._translated(region, self.by_region[region].handle(now, input))

    def is_current(self, tick: PublisherTick) -> bool:
        """Whether a timer belongs to the publisher that a region has now."""
        return tick.generation == self._generations[tick.region]

    def _stale(self, now: Time, region: RegionId, publisher: Publisher) -> bool:
        """Whether the head may have forgotten a session; nothing of it is unanswered."""
        idle = not publisher.inflight and not publisher.queue and not publisher.failed
        return idle and not 0 <= now - self._used[region] < self._renew

    def _translated(self, region: RegionId, effects: Effects) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            if type(effect) is SetTimer:
                out.append(SetTimer(effect.delay, PublisherTick(region, self._generations[region], effect.timer)))
            elif type(effect) is Deliver and type(effect.item) is Failed:
                out.append(Deliver(Broken(region, effect.item.reason)))
            else:
                out.append(effect)
        return out


class RegionSinks:
    """Sink clients."""

    def __init__(self, view: ClusterView, settings: SinkSettings) -> None:
        self._view = view
        self._settings = settings
        self.by_region: dict[RegionId, SinkClient] = {}

    def ask(self, now: Time, sinking: Sinking) -> list[Effect]:
        """Ask the owner of a stream."""
        region = sinking.region
        out: list[Effect] = []
        if region not in self.by_region:
            self.by_region[region] = SinkClient(self._view.memberships[region], self._settings)
            out = _ticking(region, self.by_region[region].start(now))
        return [*out, *self.by_region[region].ask(sinking.request)]

    def handle(self, now: Time, region: RegionId, input: Input) -> list[Effect]:
        """Give an input to the sink client of a region."""
        return _ticking(region, self.by_region[region].handle(now, input))


def _ticking(region: RegionId, effects: Effects) -> list[Effect]:
    return [
        SetTimer(effect.delay, SinkingTick(region, effect.timer)) if type(effect) is SetTimer else effect
        for effect in effects
    ]
