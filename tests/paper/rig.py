"""Machines moved by hand: nothing is delivered, synced or expired unless a test says so.

A `Rig` keeps what its machines have sent (`wire`), what they have given to their disks and the disks have not synced
(`unsynced`), and what they have delivered and reported. Timers are not kept: a test expires the one it means.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from tidings.core.history import History
from tidings.core.ids import NodeId
from tidings.core.rows import CountedRows
from tidings.core.span import Span
from tidings.protocols.kernel import (
    Deliver,
    Effects,
    Expired,
    Input,
    Machine,
    Message,
    Persist,
    Persisted,
    Received,
    Report,
    Send,
    Timer,
    singly,
)
from tidings.protocols.nodes.replica import Replica, ReplicaSettings
from tidings.protocols.replication.chain import BeatTick, Chain, ChainSettings, Committed, RetryTick
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Configuration, ConfigurationSettings, Current, SweepTick
from tidings.protocols.replication.log import Log, Lsn
from tidings.protocols.services.catalog import StreamDef
from tidings.protocols.services.publishing import OpenSession, Publish, SessionOpened

M = TypeVar("M", bound=Message)


class Letter(NamedTuple):
    """A message on its way."""

    src: NodeId
    dst: NodeId
    message: Message


class Rig:
    """Any machines, the wire between them and their disks."""

    def __init__(self) -> None:
        self.now = 0.0
        self.machines: dict[NodeId, Any] = {}
        self.down: set[NodeId] = set()
        self.wire: list[Letter] = []
        self.durable: dict[NodeId, list[Any]] = {}
        self.unsynced: dict[NodeId, list[Persist]] = {}
        self.delivered: dict[NodeId, list[Any]] = {}
        self.reports: list[tuple[NodeId, str]] = []
        self._factories: dict[NodeId, Callable[[list[Any]], Machine]] = {}

    # --- nodes ----------------------------------------------------------------------------------------------

    def add(self, node: NodeId, factory: Callable[[list[Any]], Machine]) -> None:
        """Add a machine that is made from what its disk holds, and start it."""
        self._factories[node] = factory
        self.durable[node], self.unsynced[node], self.delivered[node] = [], [], []
        self.restart(node)

    def crash(self, *nodes: NodeId) -> None:
        """Stop machines; what their disks have synced stays."""
        for node in nodes:
            self.down.add(node)
            self.unsynced[node].clear()

    def restart(self, *nodes: NodeId) -> None:
        """(Re)start machines from their disks."""
        for node in nodes:
            self.down.discard(node)
            self.machines[node] = self._factories[node](list(self.durable[node]))
            self._carry(node, self.machines[node].start(self.now))

    # --- steps ----------------------------------------------------------------------------------------------

    def tell(self, node: NodeId, input: Input) -> Effects:
        """Hand one input to a machine and carry out what follows."""
        if node in self.down:
            return ()
        effects: Effects = self.machines[node].handle(self.now, input)
        self._carry(node, effects)
        return effects

    def expire(self, timer: Timer, *nodes: NodeId) -> None:
        for node in nodes:
            self.tell(node, Expired(timer))

    def sync(self, *nodes: NodeId) -> bool:
        """Finish what the disks have begun; False if there was nothing."""
        moved = False
        for node in nodes:
            writes, self.unsynced[node] = self.unsynced[node], []
            if writes:
                moved = True
                self.durable[node] += [write.record for write in writes]
                self.tell(node, Persisted(writes[-1].token))
        return moved

    def on_wire(self, kind: type[M], *, src: NodeId | None = None, dst: NodeId | None = None) -> list[M]:
        """The messages of a kind that are under way."""
        return [m for a, b, m in self.wire if isinstance(m, kind) and src in (None, a) and dst in (None, b)]

    def take(self, *kinds: type[Message], src: NodeId | None = None, dst: NodeId | None = None) -> list[Letter]:
        """Take messages off the wire: they are lost, unless the test posts them again."""
        kinds = kinds or (Message,)
        taken = [x for x in self.wire if isinstance(x.message, kinds) and src in (None, x.src) and dst in (None, x.dst)]
        self.wire = [letter for letter in self.wire if letter not in taken]
        return taken

    def deliver(self, *kinds: type[Message], src: NodeId | None = None, dst: NodeId | None = None) -> list[Letter]:
        """Let the messages that are under way arrive; what they cause stays on the wire."""
        letters = self.take(*kinds, src=src, dst=dst)
        for letter in letters:
            self.tell(letter.dst, Received(letter.src, letter.message))
        return letters

    def settle(self, *, hold: tuple[type[Message], ...] = (), frozen: Sequence[NodeId] = ()) -> None:
        """Deliver and sync until nothing is left but what is held back and frozen disks."""
        for _ in range(10_000):
            ready = next((letter for letter in self.wire if not isinstance(letter.message, hold)), None)
            if ready is not None:
                self.wire.remove(ready)
                self.tell(ready.dst, Received(ready.src, ready.message))
            elif not self.sync(*[node for node in self.machines if node not in frozen]):
                return
        raise AssertionError("the machines do not come to rest")

    def _carry(self, node: NodeId, effects: Effects) -> None:
        self.machines[node].check()
        for effect in singly(effects):
            match effect:
                case Send(to, message):
                    self.wire.append(Letter(node, to, message))
                case Persist():
                    self.unsynced[node].append(effect)
                case Deliver(item):
                    self.delivered[node].append(item)
                case Report(name):
                    self.reports.append((node, name))


class ChainRig(Rig):
    """The configuration service "config" and replicas of a chain, the first ones members from the beginning."""

    def __init__(self, members: str, outside: str = "", settings: ChainSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or ChainSettings()
        self._nonce = 0
        initial = ChainConfig("r", 1, tuple(members))
        self.add("config", lambda durable: Configuration(initial, ConfigurationSettings(), durable))
        for replica in members + outside:
            self.add(replica, lambda durable, me=replica: self._chain(me, durable))  # type: ignore[misc]
        self.settle()

    def _chain(self, me: NodeId, durable: list[Any]) -> Chain:
        self._nonce += 1
        log = Log.recover(lambda stream: History(stream, counted=True), ["s"], durable)
        return Chain(me, "r", "config", log, self.settings, self._nonce)

    def chain(self, node: NodeId) -> Chain:
        machine = self.machines[node]
        assert isinstance(machine, Chain)
        return machine

    @property
    def membership(self) -> ChainConfig:
        """The configuration in force."""
        service = self.machines["config"]
        assert isinstance(service, Configuration)
        return service.membership

    def append(self, node: NodeId, records: int = 1) -> None:
        """Let the head make records of one event each."""
        for _ in range(records):
            chain = self.chain(node)
            at = chain.log.ends["s"]
            self._carry(node, chain.append((Span.of("s", at, CountedRows(at, at + 1, 10)),)))

    def committed(self, node: NodeId) -> list[Lsn]:
        """What a replica has committed in its present and former lives, in the order it did."""
        return [item.record.lsn for item in self.delivered[node] if isinstance(item, Committed)]

    def logs(self, *nodes: NodeId) -> list[Lsn]:
        """How far the logs of replicas reach."""
        return [self.chain(node).log.last for node in nodes]

    def beat(self, *nodes: NodeId) -> None:
        self.expire(BeatTick(), *nodes)

    def retry(self, *nodes: NodeId) -> None:
        """Two RetryTicks: the second sees that nothing has moved."""
        for _ in range(2):
            self.expire(RetryTick(), *nodes)
            self.settle()

    def silence(self, alive: str, *, settle: bool = True) -> None:
        """Let so much time pass that the service removes whoever is not alive."""
        for _ in range(8):
            self.now += 0.3
            self.beat(*alive)
            for letter in self.take(dst="config"):
                if letter.src in alive:
                    self.tell("config", Received(letter.src, letter.message))
            self.expire(SweepTick(), "config")
            self.sync("config")
        if settle:
            self.settle()

    def join(self, node: NodeId, *, hold: tuple[type[Message], ...] = ()) -> None:
        """Let a replica outside the chain ask to be appended."""
        for _ in range(2):
            self.beat(node)
            self.settle(hold=hold)


class Owner:
    """A proxy of one replica that owns stream s, and a client who has opened a session with it."""

    def __init__(self, replicas: tuple[str, ...] = ("y0",)) -> None:
        streams = [StreamDef("s", "y", counted=10), StreamDef("far", "x", counted=10)]
        self.rig = Rig()
        self.proxy = Replica("y0", "y", "config", streams, {}, ReplicaSettings(), [], random.Random(1))
        self.rig.add("y0", lambda durable: self.proxy)
        self.rig.tell("y0", Received("config", Current(ChainConfig("y", 1, replicas), self.proxy.chain.nonce)))
        self.session = 0
        self.hears(OpenSession("p", 7))
        for message in self.sync():
            assert isinstance(message, SessionOpened)
            self.session = message.session

    def hears(self, message: Message) -> list[Message]:
        """Let the client say something; the answers it gets at once."""
        self.rig.now = 1.0
        self.rig.tell("y0", Received("client", message))
        return [letter.message for letter in self.rig.take(dst="client")]

    def sync(self) -> list[Message]:
        """The answers the client gets when the disk has synced."""
        self.rig.sync("y0")
        return [letter.message for letter in self.rig.take(dst="client")]

    def publish(self, first: int, count: int, stream: str = "s") -> list[Message]:
        return self.hears(Publish(stream, "p", self.session, first, CountedRows(1, 1 + count, 10)))
