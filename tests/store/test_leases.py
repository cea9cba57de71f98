"""What a lease keeps is on disk, too: it survives a checkpoint and a restart."""

from __future__ import annotations

import random
from pathlib import Path

from store.helpers import Host
from tidings.core.rows import data_rows
from tidings.core.span import Span
from tidings.protocols.nodes.replica import Replica, ReplicaSettings, StreamDef
from tidings.protocols.replication.log import Logged, Record
from tidings.protocols.services.leases import LEASES, LeaseEntry, Leases, LeaseSettings
from tidings.store import Checkpointer, Store

ROUNDS = 40


def replica(entries: list[object]) -> Replica:
    streams = [StreamDef("s", "r", "by-key")]
    return Replica("p", "r", "config", streams, {}, ReplicaSettings(), entries, random.Random(1))  # type: ignore[arg-type]


def table(lo: int, asof: int) -> Span:
    leases = Leases(LeaseSettings())
    leases.entries = {"a": LeaseEntry("s", asof, 60.0, 1 << 20)}
    return Span.of(LEASES, lo, leases.rows(lo, 0.0))


def test_leased_rows_survive_a_checkpoint_during_which_the_lease_moves(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", node="p", map_size=1 << 24)
    host, made, tokens = Host(store), replica([]), 0
    checkpointer = Checkpointer(store, minimum=1, slice_rows=4)
    histories = made.log.histories

    def commit(*parts: Span) -> None:
        nonlocal tokens
        record = Record(1, made.log.last + 1, parts)
        made.log.append(record)
        tokens += 1
        store.write(Logged(record, made.log.committed), tokens)
        made.log.commit_next()

    def write() -> None:
        lo = made.log.ends["s"]
        commit(Span.of("s", lo, data_rows(lo, [b"k", b"j%d" % lo], [b"x", b"y"])))

    for at in range(ROUNDS):
        write()
        if at == 10:
            commit(table(1, 15))
    histories["s"].purge()
    checkpointer.step(made.log)  # begins
    commit(table(2, 19))
    write()
    histories["s"].purge()
    while checkpointer.step(made.log):
        write()
    write()
    wanted = {asof: histories["s"].rows(1, 80, asof).digest for asof in range(19, 81)}
    host.settled(tokens)
    host.close()
    again = Store.open(tmp_path / "s", node="p", map_size=1 << 24)
    back = replica(list(again.entries))
    while back.log.committed < made.log.committed:
        back.log.commit_next()
    back.log.histories["s"].purge()
    assert back.table.leases.table == made.table.leases.table == {"a": LeaseEntry("s", 19, 60.0, 1 << 20)}
    assert {asof: back.log.histories["s"].rows(1, 80, asof).digest for asof in range(19, 81)} == wanted
    assert histories["s"].held(19) > 0
    again.close()
