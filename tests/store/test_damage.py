"""A disk that gives back something else than it was given is noticed; a disk without room loses nothing."""

from __future__ import annotations

import asyncio
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lmdb
import msgspec
import pytest

from store.helpers import Host, logged
from tidings.protocols.replication.log import Logged, TokenPassed
from tidings.store import Store, StoreDamaged, StoreError, StoreFailed, StoreFull, StoreTooNew, codec, files
from tidings.store import store as store_module
from tidings.store.codec import Entry, State, encode
from tidings.store.disk import STATE_KEY, UNEXPLAINED, LogDisk, log_key
from tidings.store.files import DATA


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node"


def opened(path: Path) -> Store:
    return Store.open(path, node="a1", map_size=1 << 22)


def filled(path: Path, count: int = 60, rows: int = 40) -> list[Logged]:
    """A store with some entries, small and large, written in several groups."""
    entries = logged(count, rows)
    host = Host(opened(path))
    for token, entry in enumerate(entries, 1):
        host.store.write(entry, token)
        if token % 10 == 0:
            host.settled(token)
    host.close()
    return entries


def alter(path: Path, change: Callable[[lmdb.Transaction], object]) -> None:
    environment = files.open_environment(path, 1 << 24)
    with environment.begin(write=True) as transaction:
        change(transaction)
    environment.sync(True)
    environment.close()


def is_refused(path: Path, kind: type[StoreError] = StoreDamaged, match: str | None = None) -> None:
    with pytest.raises(kind, match=match):
        opened(path)
    with pytest.raises(kind, match=match):  # and leaves it unlocked, as it was
        opened(path)


def test_an_entry_that_is_missing_is_noticed(path: Path) -> None:
    filled(path)
    alter(path, lambda transaction: transaction.delete(log_key(17)))
    is_refused(path, match="entry 17 of .* is missing")


def test_the_last_entry_missing_is_noticed(path: Path) -> None:
    filled(path)
    alter(path, lambda transaction: transaction.delete(log_key(60)))
    is_refused(path, match="entry 60 of .* is missing")


def test_an_entry_too_many_is_noticed(path: Path) -> None:
    filled(path)
    alter(path, lambda transaction: transaction.put(log_key(61), encode(TokenPassed(1), 61)))
    is_refused(path, match="follows entry 60")


def test_an_entry_in_the_place_of_another_is_noticed(path: Path) -> None:
    filled(path)
    alter(path, lambda transaction: transaction.put(log_key(17), transaction.get(log_key(18))))
    is_refused(path, match="entry 17 is of kind 1 and says to be entry 18")


def test_a_store_without_its_state_is_damaged(path: Path) -> None:
    filled(path)
    alter(path, lambda transaction: transaction.delete(STATE_KEY))
    is_refused(path, match="does not say what it holds")


@pytest.mark.parametrize("key", [STATE_KEY, log_key(17)])
def test_a_newer_format_is_refused_by_its_own_error(path: Path, key: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    entry: Entry | State = State("a1", 60) if key == STATE_KEY else TokenPassed(9)
    with monkeypatch.context() as patch:
        patch.setattr(codec, "FORMAT", codec.FORMAT + 1)
        value = encode(entry, 0 if key == STATE_KEY else 17)
    alter(path, lambda transaction: transaction.put(key, value))
    is_refused(path, StoreTooNew, "run a newer one")


@pytest.mark.parametrize("part", [0.0, 0.001, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_file_is_damaged_not_new(path: Path, part: float) -> None:
    filled(path)
    size = (path / DATA).stat().st_size
    with (path / DATA).open("r+b") as file:
        file.truncate(int(size * part))
    is_refused(path)


def test_a_missing_file_is_damaged_not_new(path: Path) -> None:
    filled(path)
    (path / DATA).unlink()
    is_refused(path, match="has no data.mdb")


def test_a_file_of_something_else_is_damaged(path: Path) -> None:
    filled(path)
    (path / DATA).write_bytes(random.Random(1).randbytes(100_000))
    is_refused(path)


def test_a_flipped_byte_anywhere_is_noticed_or_harmless(path: Path) -> None:
    """Every byte of the meta pages, and some others: never another log than the one that was written."""
    entries = logged(10, 70)
    before = opened(path)
    for token, entry in enumerate(entries, 1):
        before.write(entry, token)
    Host(before).close()  # one group, so that the file has the same layout every time and few free pages
    rng = random.Random(7)
    image = (path / DATA).read_bytes()
    places = [*range(16, 160), *range(4096 + 16, 4096 + 160), *[rng.randrange(len(image)) for _ in range(400)]]
    noticed = 0
    for at in places:
        damaged = bytearray(image)
        damaged[at] ^= rng.randrange(1, 256)
        (path / DATA).write_bytes(damaged)
        try:
            store = opened(path)
        except (StoreDamaged, StoreTooNew):
            noticed += 1
            continue
        found = store.entries
        store.close()
        assert found == entries, f"byte {at} of {len(image)}"
    assert noticed > len(places) // 4


def test_a_flipped_byte_in_a_value_is_noticed(path: Path) -> None:
    filled(path)
    values: list[bytes] = []
    alter(path, lambda transaction: values.append(bytes(transaction.get(log_key(17)))))
    end = values[0][-40:]
    image = (path / DATA).read_bytes()  # pages that are free now may still hold it too
    (path / DATA).write_bytes(image.replace(end, end[:-1] + bytes([end[-1] ^ 1])))
    is_refused(path, match="checksum")


def test_a_damaged_store_is_put_aside_and_the_node_starts_empty(path: Path) -> None:
    for number in (1, 2):
        filled(path)
        shutil.copy(path / DATA, path.parent / "before")
        alter(path, lambda transaction: transaction.delete(log_key(17)))
        is_refused(path)
        aside = Store.quarantine(path)
        assert aside == path.with_name(f"node.damaged-{number}")
        assert aside is not None
        assert (aside / DATA).exists()
        store = opened(path)
        assert store.entries == []
        store.close()
        Store.discard(path)
    assert Store.quarantine(path) is None


# --- no room --------------------------------------------------------------------------------------------


def fill(host: Host, entries: list[Logged]) -> None:
    """Write until the store is full; the first entries have been acknowledged by then."""
    for token, entry in enumerate(entries, 1):
        host.store.write(entry, token)
        if token == 5:
            host.settled(token)
    host.until(lambda: host.store.condition == "full")


def test_a_full_map_stops_acknowledgements_and_goes_on_when_it_may_grow(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "FULL_RETRY", 0.01)
    entries = logged(400, 60)
    host = Host(Store.open(path, map_size=1 << 16, max_map_size=1 << 19))
    fill(host, entries)
    assert isinstance(host.store.error, StoreFull)
    before = list(host.tokens)
    assert 0 < before[-1] < 400
    assert host.store.queued > 0
    host.loop.run_until_complete(asyncio.sleep(0.05))
    assert host.tokens == before
    host.store.resize(1 << 26)
    host.settled(400)
    assert [condition for condition, _ in host.conditions] == ["full", "open"]
    assert host.store.error is None
    host.close()
    again = Store.open(path, map_size=1 << 16, max_map_size=1 << 26)
    assert again.entries == entries
    again.close()


def test_a_store_that_is_closed_while_full_keeps_what_was_acknowledged(path: Path) -> None:
    entries = logged(400, 60)
    host = Host(Store.open(path, map_size=1 << 16, max_map_size=1 << 19))
    fill(host, entries)
    acknowledged = host.tokens[-1]
    host.close()
    again = Store.open(path, map_size=1 << 16, max_map_size=1 << 26)
    assert acknowledged <= len(again.entries) < 400
    assert again.entries == entries[: len(again.entries)]
    again.close()


def test_the_map_grows_by_itself_up_to_its_bound(path: Path) -> None:
    entries = logged(300, 60)
    store = Store.open(path, map_size=1 << 16, max_map_size=1 << 26)
    host = Host(store)
    for token, entry in enumerate(entries, 1):
        store.write(entry, token)
    host.settled(300)
    assert host.conditions == []
    host.close()


def test_a_file_system_without_room_to_spare_is_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "FULL_RETRY", 0.01)
    monkeypatch.setattr(files, "free_bytes", lambda path: 1000)
    host = Host(Store.open(path, map_size=1 << 16, max_map_size=1 << 26))
    for token, entry in enumerate(logged(300, 60), 1):
        host.store.write(entry, token)
    host.until(lambda: host.store.condition == "full")
    assert "left on the file system" in str(host.store.error)
    monkeypatch.setattr(files, "free_bytes", lambda path: 1 << 40)
    host.settled(300)
    host.close()


LIMITED = """
import resource, sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from store.helpers import Host, logged
from tidings.store import Store, store as store_module

store_module.FULL_RETRY = 0.01
host = Host(Store.open({path!r}, map_size=1 << 26))
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
for token, entry in enumerate(logged(400, 60), 1):
    host.store.write(entry, token)
    if token % 5 == 0:
        host.until(lambda: True)
host.until(lambda: host.store.condition == "full")
print(host.tokens[-1], flush=True)
end = time.monotonic() + 0.5  # dozens of tries, each of which may end in a short write
host.until(lambda: time.monotonic() > end)
assert host.store.condition == "full", host.store.error
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
host.settled(400)
print(host.tokens[-1], [condition for condition, _ in host.conditions], flush=True)
host.close()
"""


def test_a_write_that_the_file_system_refuses_is_tried_again(path: Path) -> None:
    """A limit on the size of files stands in for a full disk: both fail in the middle of a commit."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    program = LIMITED.format(tests=str(Path(__file__).parents[1]), path=str(path))
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    first, second = ran.stdout.splitlines()
    assert 0 < int(first) < 400
    assert second.startswith("400 ['full', 'open'")
    again = Store.open(path, map_size=1 << 26)
    assert again.entries == logged(400, 60)
    again.close()


def test_input_output_errors_are_believed_only_where_there_is_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room may be made between a short write and the question whether there was any: that is not the disk's end."""
    host = Host(opened(path))
    disk = host.store._disk
    assert disk is not None

    def tries(cramped: bool, count: int) -> list[type[StoreError]]:
        monkeypatch.setattr(files, "cramped", lambda path: cramped)
        error = lmdb.Error("mdb_txn_commit: Input/output error")
        return [type(disk._judged(error)) for _ in range(count)]

    assert tries(True, 3 * UNEXPLAINED) == [StoreFull] * 3 * UNEXPLAINED
    assert tries(False, UNEXPLAINED) == [StoreFull] * UNEXPLAINED
    assert tries(True, 1) == [StoreFull]
    assert tries(False, UNEXPLAINED + 1) == [StoreFull] * UNEXPLAINED + [StoreFailed]
    host.store.write(TokenPassed(1), 1)
    host.settled(1)
    assert tries(False, 1) == [StoreFull]  # a write that succeeds begins the count anew
    host.close()


def test_a_sync_that_fails_is_final(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: LogDisk) -> None:
        raise lmdb.Error("mdb_env_sync: Input/output error")

    host = Host(opened(path))
    monkeypatch.setattr(LogDisk, "_sync", broken)
    host.store.write(TokenPassed(1), 1)
    host.until(lambda: host.store.condition == "failed")
    assert host.tokens == []
    assert "restart the node" in str(host.store.error)
    host.close()


def test_state_keeps_its_meaning_when_fields_are_added() -> None:
    old = msgspec.msgpack.encode(["a1", 5])
    assert msgspec.msgpack.decode(old, type=State) == State("a1", 5)
