"""What a client knows of the cluster: the chains of the regions, the streams, and its own region."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from tidings.client.commands import Ask
from tidings.core.ids import NodeId, RegionId, StreamId, StreamName, stream_name
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.catalog import Description, StreamDef


class ClusterView:
    """It begins with ``seeds``, addresses without names; ``offset`` spreads clients over the replicas of a region."""

    def __init__(self, me: NodeId, seeds: Sequence[NodeId], offset: int) -> None:
        self.me = me
        self.seeds = tuple(seeds)
        self.offset = offset
        self.home: RegionId = ""  # the region of the replica that answered first
        self.memberships: dict[RegionId, ChainConfig] = {}
        self.streams: dict[StreamName, StreamDef] = {}  # what each name means now
        self.receipts = False  # the cluster asks its subscribers for receipts
        self.edges: tuple[NodeId, ...] = ()  # of its own region, the preferred one first
        self._listed: tuple[NodeId, ...] = ()  # those that were told of last

    def learn(self, membership: ChainConfig) -> bool:
        """The newest configuration of a region counts; returns whether this one is newer."""
        known = self.memberships.get(membership.region)
        if known is not None and membership.epoch <= known.epoch:
            return False
        self.memberships[membership.region] = membership
        return True

    def learn_edges(self, told: Description) -> bool:
        """Learn which edges the own region has, by its last two descriptions; returns whether they are others now.

        Each client prefers another one, and none of them moves when an edge comes or goes that it does not prefer.
        """
        if told.region != self.home:
            return False
        there, self._listed = {*told.edges, *self._listed}, told.edges  # a replica that has just started lacks some
        before, self.edges = self.edges, tuple(sorted(there, key=self._rank))
        return self.edges != before

    def _rank(self, edge: NodeId) -> bytes:
        """Rendezvous hashing: another order of the edges for each client."""
        return blake2b(f"{edge} {self.me}".encode(), digest_size=8).digest()

    def learn_streams(self, told: Description) -> None:
        """Learn definitions of streams, and from the own region which of two streams of one name counts."""
        home = told.region == self.home
        if home:
            self.receipts = told.receipts
        for stream in told.streams:
            known = self.streams.get(stream.name)
            if known is None or _is_newer(stream, known) or (home and stream.region != known.region):  # an older claim
                self.streams[stream.name] = stream

    def learn_definition(self, stream: StreamDef) -> None:
        """An owner has answered: this is what the name means from now on."""
        if stream.deleted:
            self.forget(stream.id)
        else:
            self.streams[stream.name] = stream

    def id_of(self, stream: StreamName | StreamId) -> StreamId:
        """The stream that a name means; an id, or a name that is unknown here, stays as it is."""
        known = self.streams.get(stream)
        return stream if known is None else known.id

    def find(self, stream: StreamName | StreamId) -> StreamDef | None:
        """The definition of the stream that a name means, or of the one with that id if its name still means it."""
        known = self.streams.get(stream_name(stream))
        return known if known is not None and stream in (known.name, known.id) else None

    def forget(self, stream: StreamId) -> None:
        """A replica has said that there is no such stream: ask again before its name is used."""
        known = self.streams.get(stream_name(stream))
        if known is not None and known.id == stream:
            del self.streams[known.name]

    def targets(self, ask: Ask) -> tuple[NodeId, ...]:
        """Whom to ask, the first one first."""
        if ask.region in self.memberships:
            replicas = self.memberships[ask.region].replicas
            return replicas if ask.head else replicas[::-1]  # the tail knows what is committed before the others
        if not self.home:
            return self.seeds
        replicas = self.memberships[self.home].replicas
        at = self.offset % len(replicas)
        far = [self.memberships[region].head for region in sorted(self.memberships) if region != self.home]
        return (*replicas[at:], *replicas[:at], *far, *self.seeds)


def _is_newer(stream: StreamDef, known: StreamDef) -> bool:
    """Whether a region tells of a stream that was altered or created anew: attributes are only ever added."""
    if stream.id == known.id:
        return not known.attrs.startswith(stream.attrs)
    return stream.region == known.region and stream.created > known.created
