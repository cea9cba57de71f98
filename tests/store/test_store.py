"""A store gives back what it was given, in order, and says when it is durable."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.helpers import STREAMS, Host, PowerSwitch, empty_log, logged, make_history, record, summary
from tidings.core.rows import NO_ROWS, CountedRows
from tidings.core.span import Span
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.log import Checkpoint, CutBack, Installed, Log, Logged, Record, TokenPassed
from tidings.store import Store, StoreBusy, StoreFailed, StoreForeign, disk
from tidings.store import store as store_module
from tidings.store.codec import Entry, decode, encode
from tidings.store.files import put_back_image


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node"


def small(path: Path, **more: int) -> Store:
    return Store.open(path, node="a1", map_size=1 << 22, **more)  # type: ignore[arg-type]


SPANS = (Span("s", 3, 9, 12, CountedRows(4, 7, 10, ((5, 2),))), Span("t", 1, 4, 4, NO_ROWS))
EVERY_SORT: list[Entry] = [
    Logged(Record(3, 9, SPANS), 7),
    Logged(Record(3, 10, ()), 9),
    CutBack(9, 4),
    Installed(9, 2, SPANS, True),
    Installed(9, 2, SPANS, True, 3),
    TokenPassed(4),
    Checkpoint(9, 0, SPANS, False, 9, 2, 1),
    Checkpoint(9, 0, SPANS, True, 9, 2, 1, 3),
    ChainConfig("eu", 5, ("a1", "a2"), "a3"),
    ChainConfig("eu", 5, ("a1",)),
    *logged(4, rows=100),
]


@pytest.mark.parametrize("entry", EVERY_SORT, ids=lambda entry: type(entry).__name__)
def test_every_sort_of_entry_comes_back_from_its_bytes(entry: Entry) -> None:
    assert decode(encode(entry, 77), 77) == entry


def test_entries_come_back_in_order_after_closing(path: Path) -> None:
    entries: list[Entry] = [*logged(30), TokenPassed(2), CutBack(27, 3)]
    host = Host(small(path))
    for token, entry in enumerate(entries, 1):
        assert host.store.write(entry, token)
    host.close()
    again = small(path)
    assert again.entries == entries
    again.close()


def test_a_log_recovers_from_the_store_as_from_the_entries(path: Path) -> None:
    entries = logged(50)
    host = Host(small(path))
    for token, entry in enumerate(entries, 1):
        host.store.write(entry, token)
    host.close()
    again = small(path)
    recovered = Log.recover(make_history, STREAMS, again.entries)  # type: ignore[arg-type]
    assert summary(recovered) == summary(Log.recover(make_history, STREAMS, entries))
    again.close()


def test_one_sync_covers_all_that_was_queued_and_reports_the_last_token(path: Path) -> None:
    store = small(path)
    for token, entry in enumerate(logged(40), 1):
        store.write(entry, token)
    host = Host(store)
    host.settled(40)
    assert host.tokens == [40]
    assert store.stats.groups == 1
    assert store.stats.largest_group == 40
    host.close()


def test_tokens_ascend_and_the_next_sync_takes_what_came_in_meanwhile(path: Path) -> None:
    host = Host(small(path))
    for token, entry in enumerate(logged(300), 1):
        host.store.write(entry, token)
        if token % 10 == 0:
            host.until(lambda: True)
    host.settled(300)
    assert host.tokens == sorted(set(host.tokens))
    assert host.store.stats.groups < 300
    assert host.store.queued == 0
    host.close()


def test_a_group_has_a_bound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "GROUP_BYTES", 2000)
    store = small(path)
    for token, entry in enumerate(logged(40), 1):
        store.write(entry, token)
    host = Host(store)
    host.settled(40)
    assert store.stats.groups > 3
    host.close()


def test_a_queue_over_its_bound_says_so_until_it_is_not(path: Path) -> None:
    store = small(path, queue_bytes=3000)
    said = [store.write(entry, token) for token, entry in enumerate(logged(40), 1)]
    assert said[0] and not said[-1] and said == sorted(said, reverse=True)
    assert store.over
    assert store.stats.over == said.count(False)
    host = Host(store)
    host.settled(40)
    assert not store.over
    assert store.stats.most_queued > 3000
    host.close()


def test_the_decisions_of_a_configuration_service_are_kept_and_old_ones_go(path: Path) -> None:
    host = Host(small(path))
    for epoch in range(1, 400):
        host.store.write(ChainConfig("eu", epoch, ("a1", "a2")), epoch)
        if epoch % 50 == 0:
            host.settled(epoch)
    host.close()
    again = small(path)
    assert [one.epoch for one in again.entries if isinstance(one, ChainConfig)] == [
        *range(400 - len(again.entries), 400)
    ]
    assert store_module.MEMBERSHIPS <= len(again.entries) <= 2 * store_module.MEMBERSHIPS
    again.close()


def test_in_memory_mode_the_last_token_comes_back_when_the_turn_is_settled_and_nothing_is_on_disk(path: Path) -> None:
    host = Host(Store.open(path, durability="memory"))
    for token, entry in enumerate(logged(5), 1):
        assert host.store.write(entry, token)
    assert host.tokens == []
    host.store.settle()
    assert host.tokens == [5]
    host.store.settle()
    assert host.tokens == [5]
    assert host.store.entries == []
    assert not path.exists()
    host.close()


def test_a_store_is_open_in_one_place_at_a_time(path: Path) -> None:
    store = small(path)
    with pytest.raises(StoreBusy):
        small(path)
    store.close()
    small(path).close()


def test_a_store_of_another_node_is_refused(path: Path) -> None:
    small(path).close()
    with pytest.raises(StoreForeign, match="a1"):
        Store.open(path, node="b7", map_size=1 << 22)
    small(path).close()


def test_what_cannot_be_encoded_fails_the_store_and_is_not_acknowledged(path: Path) -> None:
    host = Host(small(path))
    host.store.write(Logged(Record(1, 1, (Span("s", 1, 1 << 30, 1, CountedRows(1, 1 << 30, 1)),)), 0), 1)
    host.until(lambda: bool(host.conditions))
    assert host.conditions[0][0] == "failed"
    assert isinstance(host.store.error, StoreFailed)
    assert host.tokens == []
    assert not host.store.write(TokenPassed(1), 2)
    host.close()
    again = small(path)
    assert again.entries == []
    again.close()


# --- power cuts -----------------------------------------------------------------------------------------


def run_until_power_is_cut(path: Path, lengths: list[int]) -> tuple[list[Logged], int]:
    """Write groups, cut the power somewhere; what was written, and how many of them were acknowledged."""
    store = small(path)
    switch = PowerSwitch(store, path)
    host = Host(store)
    entries = logged(sum(lengths))
    token = 0
    for length in lengths:
        for entry in entries[token : token + length]:
            token += 1
            store.write(entry, token)
        host.until(lambda: bool(host.tokens))
    acknowledged = host.tokens[-1]
    host.close(flush=False)
    switch.cut()
    return entries, acknowledged


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_what_was_acknowledged_survives_a_power_cut(tmp_path: Path, lengths: list[int]) -> None:
    path = tmp_path / "node"
    Store.discard(path)
    entries, acknowledged = run_until_power_is_cut(path, lengths)
    again = small(path)
    assert len(again.entries) >= acknowledged
    assert again.entries == entries[: len(again.entries)]
    again.close()


def test_without_the_sync_a_power_cut_loses_what_was_acknowledged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above is able to fail."""
    monkeypatch.setattr(disk.LogDisk, "_sync", lambda self: None)
    _, acknowledged = run_until_power_is_cut(path, [5, 5, 5])
    again = small(path)
    assert len(again.entries) < acknowledged
    again.close()


def crash_before_the_sync(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Logged]:
    """Entries of which the last is written but not synced, and not acknowledged: its process died in between."""

    def die(self: disk.LogDisk) -> None:
        raise lmdb.Error("planted")

    entries = logged(2)
    host = Host(small(path))
    host.store.write(entries[0], 1)
    host.settled(1)
    with monkeypatch.context() as patch:
        patch.setattr(disk.LogDisk, "_sync", die)
        host.store.write(entries[1], 2)
        host.until(lambda: bool(host.conditions))
    assert host.tokens == [1]
    host.close(flush=False)
    return entries


def test_what_is_read_after_a_crash_survives_a_power_cut(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(disk.IMAGES, "1")
    entries = crash_before_the_sync(path, monkeypatch)
    store = small(path)
    assert store.entries == entries, "the machine may answer for all of it from now on"
    store.close(flush=False)
    put_back_image(path)
    again = small(path)
    assert again.entries == entries
    again.close()


def test_a_store_that_cannot_be_synced_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: disk.LogDisk) -> None:
        raise lmdb.Error("planted")

    crash_before_the_sync(path, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(disk.LogDisk, "_sync", refuse)
        with pytest.raises(StoreFailed, match="may not be on the disk"):
            small(path)
    small(path).close()  # it has let go of the lock


WRITER = """
import sys, asyncio
sys.path.insert(0, {tests!r})
from store.helpers import logged
from tidings.store import Store

async def main():
    store = Store.open({path!r}, node="a1", map_size=1 << 22)
    store.start(asyncio.get_running_loop(), lambda token: print(token, flush=True))
    for token, entry in enumerate(logged(3000), 1):
        store.write(entry, token)
        if token % 3 == 0:
            await asyncio.sleep(0.001)  # some syncs long: many groups, none of them waited for
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("reports", [1, 5, 25])
def test_what_was_acknowledged_survives_kill_minus_nine(path: Path, reports: int) -> None:
    tests = str(Path(__file__).parents[1])
    program = WRITER.format(tests=tests, path=str(path))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as writer:
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(reports)][-1]
        writer.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *[int(line) for line in writer.stdout if line.endswith("\n")]])
    again = small(path)
    assert len(again.entries) >= acknowledged
    assert again.entries == logged(3000)[: len(again.entries)]
    again.close()


def test_a_store_that_was_half_made_is_made_again(path: Path) -> None:
    (path.parent / "node.new").mkdir()
    (path.parent / "node.new" / "data.mdb").write_bytes(b"half")
    small(path).close()
    assert not (path.parent / "node.new").exists()


def test_the_log_of_a_host_that_commits_as_tokens_come_recovers(path: Path) -> None:
    log = empty_log()
    host = Host(small(path))
    for token in range(1, 60):
        made = record(log, 4, token % 3, 1, salt=token)
        log.append(made)
        host.store.write(Logged(made, log.committed), token)
        if token % 7 == 0:
            host.settled(token)
            while log.committed < token:
                log.commit_next()
    host.close()
    again = small(path)
    back = Log.recover(make_history, STREAMS, again.entries)  # type: ignore[arg-type]
    while back.committed < log.committed:
        back.commit_next()
    assert summary(back) == summary(log)
    again.close()
