"""Checkpoints: after a crash at any instant the log recovers to what it was, and the file stays small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.helpers import STREAMS, Host, PowerSwitch, batch, empty_log, make_history, record, summary
from tidings.core.rows import ArrowRows, data_rows
from tidings.core.span import Span
from tidings.protocols.replication.log import (
    Checkpoint,
    CutBack,
    DiskEntry,
    Installed,
    Log,
    Logged,
    Record,
    TokenPassed,
)
from tidings.store import Checkpointer, Store, StoreDamaged
from tidings.store.disk import LogDisk, piece_key
from tidings.store.store import Places, _runs


class Replica:
    """A log and its store, driven as a chain drives them; ``written`` is what a disk without checkpoints would hold."""

    def __init__(self, path: Path, *, slice_rows: int = 4) -> None:
        self.path = path
        self.store = Store.open(path, node="a1", map_size=1 << 24)
        self.switch = PowerSwitch(self.store, path)
        self.host = Host(self.store)
        self.checkpointer = Checkpointer(self.store, minimum=1, slice_rows=slice_rows)
        self.log = empty_log()
        self.written: list[DiskEntry] = []
        self.epoch = 1

    def persist(self, entry: DiskEntry) -> None:
        self.written.append(entry)
        self.store.write(entry, len(self.written))

    def settle(self) -> None:
        if self.written:
            self.host.settled(len(self.written))

    def append(self, *sizes: int, salt: int = 0) -> None:
        made = record(self.log, *sizes, epoch=self.epoch, salt=salt)
        self.log.append(made)
        self.persist(Logged(made, self.log.committed))

    def commit(self, count: int) -> None:
        """Commit some of what is durable."""
        self.settle()
        for _ in range(min(count, self.log.last - self.log.committed)):
            self.log.commit_next()

    def cut_back(self) -> None:
        self.log.cut(self.log.committed)
        self.epoch += 1
        self.log.joined_epoch = self.epoch
        self.persist(CutBack(self.log.last, self.epoch))

    def pass_token(self) -> None:
        self.log.token_epoch = self.epoch
        self.persist(TokenPassed(self.epoch))

    def install(self, salt: int) -> None:
        """A snapshot of another replica, ahead of this one, arrives in pieces."""
        ahead = empty_log()
        for at in range(self.log.last + 3):
            ahead.append(record(ahead, 3, 1, 1, salt=salt + at))
            ahead.commit_next()
        pieces, made = ahead.snapshot(6), ahead.epoch_of(ahead.committed)
        for index, spans in enumerate(pieces):
            self.persist(Installed(ahead.committed, index, spans, index == len(pieces) - 1, made))
        self.log.install(ahead.committed, [span for piece in pieces for span in piece], made)

    def purge(self) -> None:
        for history in self.log.histories.values():
            history.purge()

    def restart(self, cut: bool) -> None:
        """Come back from the disk, after a power cut or an orderly stop, and check that nothing is missing."""
        if not cut:
            self.settle()
        acknowledged = self.host.tokens[-1] if self.host.tokens else 0
        self.host.close(flush=not cut)
        if cut:
            self.switch.cut()
        store = Store.open(self.path, node="a1", map_size=1 << 24)
        back = Log.recover(make_history, STREAMS, store.entries)  # type: ignore[arg-type]
        surviving = [
            count for count in range(acknowledged, len(self.written) + 1) if self._could_be(back, self.written[:count])
        ]
        assert surviving, "the store gave back what was never there"
        self.written = self.written[: surviving[-1]]
        self.log, self.store = back, store
        self.switch = PowerSwitch(store, self.path)
        self.host = Host(store)
        if self.written:  # all of it is durable: tokens go on from there
            self.host.tokens.append(len(self.written))
        self.checkpointer = Checkpointer(store, minimum=1, slice_rows=4)
        self.epoch = max(self.epoch, back.joined_epoch)

    def _could_be(self, back: Log, entries: list[DiskEntry]) -> bool:
        """Whether a log is what these entries recover to; a checkpoint may know that more of it is committed."""
        plain = Log.recover(make_history, STREAMS, entries)
        if plain.last != back.last or plain.committed > back.committed:
            return False
        while plain.committed < back.committed:
            plain.commit_next()
        return summary(plain) == summary(back)


Step = Callable[[Replica], None]
appends = st.builds(
    lambda a, b, c, salt: lambda replica: replica.append(a, b, c, salt=salt),
    *[st.integers(0, 9), st.integers(0, 4), st.integers(0, 2), st.integers(0, 50)],
)
steps: st.SearchStrategy[tuple[str, Step]] = st.one_of(
    st.tuples(st.just("append"), appends),
    st.tuples(st.just("append"), appends),
    st.tuples(st.just("commit"), st.integers(1, 6).map(lambda count: lambda replica: replica.commit(count))),
    st.tuples(st.just("checkpoint"), st.just(lambda replica: replica.checkpointer.step(replica.log))),
    st.tuples(st.just("checkpoint"), st.just(lambda replica: replica.checkpointer.step(replica.log))),
    st.tuples(st.just("purge"), st.just(lambda replica: replica.purge())),
    st.tuples(st.just("token"), st.just(lambda replica: replica.pass_token())),
    st.tuples(st.just("cut back"), st.just(lambda replica: replica.cut_back())),
    st.tuples(st.just("install"), st.integers(0, 9).map(lambda salt: lambda replica: replica.install(salt))),
    st.tuples(st.just("settle"), st.just(lambda replica: replica.settle())),
    st.tuples(st.just("stop"), st.just(lambda replica: replica.restart(cut=False))),
    st.tuples(st.just("power cut"), st.just(lambda replica: replica.restart(cut=True))),
)


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(steps, max_size=40))
def test_a_log_recovers_from_a_crash_at_any_instant(tmp_path: Path, script: list[tuple[str, Step]]) -> None:
    Store.discard(tmp_path / "node")
    replica = Replica(tmp_path / "node")
    for _, step in script:
        step(replica)
    replica.restart(cut=True)
    replica.restart(cut=False)
    replica.host.close()


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(tmp_path / "node")


def grown(replica: Replica, records: int, behind: int = 2) -> None:
    for at in range(records):
        replica.append(4, 3, 1, salt=at)
        if at % 5 == 4:
            replica.settle()
            while replica.log.committed < replica.log.last - behind:
                replica.log.commit_next()


def checkpointed(replica: Replica, between: Callable[[], None] = lambda: None) -> None:
    while replica.checkpointer.step(replica.log):
        between()


def test_a_finished_checkpoint_replaces_the_log_before_it(replica: Replica) -> None:
    grown(replica, 50)
    checkpointed(replica)
    before = summary(replica.log)
    grown(replica, 1)
    replica.settle()
    assert replica.store.stats.checkpoints == 1
    replica.host.close()
    store = Store.open(replica.path, node="a1", map_size=1 << 24)
    kinds = [type(entry).__name__ for entry in store.entries]
    pieces = kinds.count("Checkpoint")
    assert pieces > 2
    assert kinds == ["Checkpoint"] * pieces + ["Logged"] * (51 - before["committed"])
    store.close()


def test_a_checkpoint_taken_while_records_are_committed_recovers_with_them(replica: Replica) -> None:
    grown(replica, 30)

    def go_on() -> None:
        replica.append(4, 1, 1, salt=replica.log.last)
        replica.commit(99)

    checkpointed(replica, go_on)
    replica.host.until(lambda: replica.store.stats.checkpoints == 1)
    now = replica.log.committed
    replica.restart(cut=True)
    assert replica.log.committed == now  # the checkpoint knows, though no later record has said so
    assert all(history.horizon >= history.floor for history in replica.log.histories.values())
    replica.host.close()


def test_records_voided_by_a_cut_before_the_checkpoint_do_not_come_back(replica: Replica) -> None:
    grown(replica, 20)
    replica.append(3, salt=1)
    replica.append(3, salt=2)
    replica.cut_back()
    grown(replica, 4, behind=3)
    checkpointed(replica)
    replica.restart(cut=False)
    replica.host.close()


@pytest.mark.parametrize("disturbance", ["cut_back", "install"])
def test_a_checkpoint_is_abandoned_when_the_log_changes_under_it(replica: Replica, disturbance: str) -> None:
    grown(replica, 30)
    assert replica.checkpointer.step(replica.log)
    if disturbance == "cut_back":
        replica.cut_back()
    else:
        replica.install(3)
    assert not replica.checkpointer.step(replica.log)
    assert not replica.checkpointer.active
    assert replica.store.stats.abandoned == 1
    grown(replica, 3)
    checkpointed(replica)
    replica.restart(cut=False)
    replica.host.close()


def test_no_checkpoint_begins_while_a_snapshot_arrives(replica: Replica) -> None:
    grown(replica, 10)
    ahead = empty_log()
    for _ in range(20):
        ahead.append(record(ahead, 3, 3, salt=1))
        ahead.commit_next()
    pieces = ahead.snapshot(6)
    assert len(pieces) > 2
    for index, spans in enumerate(pieces):
        last = index == len(pieces) - 1
        replica.persist(Installed(20, index, spans, last))
        if not last:
            assert not replica.checkpointer.due()
            assert not replica.checkpointer.step(replica.log)
            assert not replica.checkpointer.active
    replica.log.install(20, [span for piece in pieces for span in piece])
    checkpointed(replica)
    replica.restart(cut=False)
    replica.host.close()


def test_a_refused_part_abandons_the_checkpoint_that_spans_it(replica: Replica) -> None:
    grown(replica, 20, behind=0)
    replica.commit(99)
    assert replica.checkpointer.step(replica.log)
    horizon = replica.log.histories["plain"].horizon
    wrong = Span.of("plain", horizon - 1, data_rows(horizon - 1, None, [b"another"]))
    made = Record(1, replica.log.last + 1, (wrong,))
    replica.log.append(made)
    replica.persist(Logged(made, replica.log.committed))
    replica.commit(1)
    assert replica.log.refusals == 1
    assert not replica.checkpointer.step(replica.log)
    assert replica.store.stats.abandoned == 1
    replica.restart(cut=False)
    replica.host.close()


class Catalogue:
    """A log whose streams are defined, and dropped, in the log itself."""

    DEFINITIONS = "_streams/eu"

    def __init__(self) -> None:
        self.log = Log(make_history, (self.DEFINITIONS, *STREAMS), self.learn)

    def learn(self, part: Span) -> None:
        if part.stream == self.DEFINITIONS and isinstance(part.rows, ArrowRows):
            for row in part.rows.batch.to_pylist():
                if row["payload"] == b"drop":
                    self.log.drop(row["key"].decode())
                else:
                    self.log.define(row["key"].decode())

    def say(self, replica: Replica, stream: str, what: bytes) -> None:
        lo = self.log.ends[self.DEFINITIONS]
        definition = Span.of(self.DEFINITIONS, lo, data_rows(lo, [stream.encode()], [what]))
        self.take(replica, definition)

    def take(self, replica: Replica, part: Span) -> None:
        made = Record(1, self.log.last + 1, (part,))
        self.log.append(made)
        replica.persist(Logged(made, self.log.committed))
        replica.commit(9)

    def grow(self, replica: Replica, stream: str) -> None:
        self.take(replica, batch(self.log, stream, 5, keys=40, salt=1))


def recovered(replica: Replica) -> Log:
    replica.settle()
    replica.host.close()
    store = Store.open(replica.path, node="a1", map_size=1 << 24)
    back = Catalogue()
    back.log.replay(store.entries)  # type: ignore[arg-type]
    store.close()
    return back.log


def test_a_definition_that_changes_during_a_checkpoint_is_there_when_its_rows_are_loaded(replica: Replica) -> None:
    catalogue = Catalogue()
    replica.log = catalogue.log
    catalogue.say(replica, "new", b"define")
    for _ in range(4):
        catalogue.grow(replica, "new")
    assert replica.checkpointer.step(replica.log)
    catalogue.say(replica, "new", b"alter")  # collects the first definition
    catalogue.say(replica, "newer", b"define")
    catalogue.grow(replica, "newer")
    checkpointed(replica)
    replica.host.until(lambda: replica.store.stats.checkpoints == 1)
    assert summary(recovered(replica)) == summary(catalogue.log)


def test_a_stream_that_is_dropped_during_a_checkpoint_abandons_it(replica: Replica) -> None:
    catalogue = Catalogue()
    replica.log = catalogue.log
    catalogue.say(replica, "new", b"define")
    for _ in range(4):
        catalogue.grow(replica, "new")
    assert replica.checkpointer.step(replica.log)
    catalogue.say(replica, "new", b"drop")
    assert not replica.checkpointer.step(replica.log)
    assert replica.store.stats.abandoned == 1
    checkpointed(replica)
    assert "new" not in recovered(replica).histories


def test_an_empty_log_can_be_checkpointed(replica: Replica) -> None:
    assert not replica.checkpointer.step(replica.log)
    grown(replica, 3)
    replica.restart(cut=False)
    assert replica.log.last == 3
    replica.host.close()


def test_a_checkpoint_is_due_when_the_log_has_outgrown_the_last_one(replica: Replica) -> None:
    checkpointer = Checkpointer(replica.store, minimum=5000, slice_rows=8)
    replica.checkpointer = checkpointer
    assert not checkpointer.due()
    while not checkpointer.due():
        grown(replica, 5)
    assert replica.store.written_bytes > 5000
    assert checkpointer.step(replica.log)
    assert checkpointer.due()
    checkpointed(replica)
    assert not checkpointer.due()
    assert replica.store.checkpoint_bytes > 0
    replica.host.close()


def test_in_memory_mode_no_checkpoint_is_ever_due(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "node", durability="memory")
    assert not Checkpointer(store, minimum=0).due()


def test_a_piece_that_is_missing_is_noticed(replica: Replica) -> None:
    grown(replica, 30)
    checkpointed(replica)
    grown(replica, 1)
    replica.settle()
    replica.host.close()
    disk = LogDisk(replica.path, "a1", 1 << 24, 1 << 24)
    with disk._environment.begin(write=True) as transaction:
        assert transaction.delete(piece_key(disk.state.generation, 1))
    disk.close()
    with pytest.raises(StoreDamaged, match="piece 1 of"):
        Store.open(replica.path, map_size=1 << 24)


def test_leftovers_of_an_unfinished_checkpoint_do_not_harm_the_next_one(replica: Replica) -> None:
    grown(replica, 40)
    for _ in range(4):
        assert replica.checkpointer.step(replica.log)
    generation = replica.store._generation
    replica.restart(cut=False)
    assert replica.store._generation == generation  # the next one is above: what is left of this one may still go
    checkpointed(replica)
    replica.restart(cut=False)
    replica.host.close()


def test_recovery_ignores_where_a_checkpoint_stands_as_long_as_later_records_follow() -> None:
    """A disk that purges nothing, as a simulated one, gives the same log."""
    log = empty_log()
    entries: list[DiskEntry] = []
    for at in range(12):
        made = record(log, 3, 1, salt=at)
        log.append(made)
        entries.append(Logged(made, log.committed))
        if at % 2:
            log.commit_next()
    pieces = log.snapshot(5)
    lsn = log.committed
    checkpoint = [
        Checkpoint(lsn, index, spans, index == len(pieces) - 1, lsn, 0, 0, log.epoch_of(lsn))
        for index, spans in enumerate(pieces)
    ]
    assert summary(Log.recover(make_history, STREAMS, [*entries, *checkpoint])) == summary(log)
    later = [entry for entry in entries if isinstance(entry, Logged) and entry.record.lsn > lsn]
    assert summary(Log.recover(make_history, STREAMS, [*checkpoint, *later])) == summary(log)


def test_the_file_stays_bounded_under_a_steady_load(tmp_path: Path) -> None:
    """By key, so that the live state has one size: what is written is many times what is kept."""
    store = Store.open(tmp_path / "node", map_size=1 << 26)
    host = Host(store)
    log = empty_log()
    minimum = 1 << 19  # what is written from one checkpoint to the next: the end may fall anywhere between two
    checkpointer = Checkpointer(store, minimum=minimum)
    sizes: list[int] = []
    for token in range(1, 1201):
        made = Record(1, log.last + 1, (batch(log, "keyed", 200, keys=3000, salt=token),))
        log.append(made)
        store.write(Logged(made, log.committed), token)
        if token % 4 == 0:
            host.settled(token)
            while log.committed < token:
                log.commit_next()
        if checkpointer.due():
            checkpointer.step(log)
            log.histories["keyed"].purge()
        log.trim(16)
        sizes.append(store.used_bytes)
    assert store.stats.checkpoints >= 5
    assert store.written_bytes > 3 * sizes[-1]
    assert sizes[-1] <= max(sizes[: len(sizes) // 2]) + minimum
    host.close()
    again = Store.open(tmp_path / "node", map_size=1 << 26)
    back = Log.recover(make_history, STREAMS, again.entries)  # type: ignore[arg-type]
    while back.committed < log.committed:
        back.commit_next()
    assert summary(back) == summary(log)
    again.close()


def test_places_know_which_records_count() -> None:
    places = Places()
    for number, lsn in ((1, 5), (2, 6), (4, 7), (5, 8)):
        places.follow(Logged(Record(1, lsn, ()), 0), number)
    places.follow(CutBack(7, 2), 6)
    places.follow(Logged(Record(2, 8, ()), 0), 7)
    assert places.purge(5, 7).kept == ((2, 2), (4, 4), (7, 7))
    assert places.purge(7, 7).kept == ((7, 7),)
    assert places.purge(9, 7).kept == ()
    places.follow(Logged(Record(2, 9, ()), 0), 8)
    assert places.first == 9
    assert _runs([3, 4, 5, 9, 11, 12]) == ((3, 5), (9, 9), (11, 12))
