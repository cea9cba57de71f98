"""The cache: never older than an invalidation it has received, whatever the interleaving."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import tidings
from client.rig import dial, run, town, until
from tidings import errors
from tidings.client.cache import ATTEMPTS, Cache
from tidings.client.events import EventRows, StreamInfo
from tidings.core.rows import NO_ROWS, before_rows, data_rows
from tidings.core.span import Span


class Feed:
    at = 1
    horizon = 1
    heard = 0.0


class Line:
    """A connection whose only subscription says what it is told to."""

    def __init__(self, gc: str = "by-key") -> None:
        self.gc = gc
        self.spans_: asyncio.Queue[Span | BaseException] = asyncio.Queue()
        self.feed = Feed()
        self.feed.heard = asyncio.get_running_loop().time()
        self.feeds = {1: self.feed}
        self.on_heard: Any = None
        self.seq = 1
        self.gate = asyncio.Event()  # closed while nobody can be subscribed
        self.gate.set()

    async def stream(self, name: str) -> StreamInfo:
        return StreamInfo(name, "r0", self.gc, "", 1, 0, 0)

    def subscribe(self, *args: Any, **options: Any) -> Line:
        return self

    async def __aenter__(self) -> Line:
        await self.gate.wait()
        return self

    async def __aexit__(self, *args: object) -> None:
        pass

    async def spans(self) -> Any:
        while True:
            item = await self.spans_.get()
            if isinstance(item, BaseException):
                raise item
            yield EventRows(item)

    async def says(self, span: Span) -> None:
        self.spans_.put_nowait(span)
        self.seq = span.hi
        for _ in range(4):
            await asyncio.sleep(0)

    async def invalidates(self, *keys: bytes | None) -> None:
        await self.says(Span.of("s", self.seq, data_rows(self.seq, list(keys), [b""] * len(keys))))


class Database:
    """Values that change, and reads that end when they are told to."""

    def __init__(self) -> None:
        self.rows = {b"a": "a1", b"b": "b1"}
        self.reads: list[asyncio.Future[None]] = []
        self.slow = False
        self.count = 0

    async def load(self, key: bytes) -> str:
        self.count += 1
        value = self.rows[key]  # what is read is what is there when the read begins
        if self.slow:
            gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.reads.append(gate)
            await gate
        return value

    def end(self, at: int) -> None:
        self.reads[at].set_result(None)


async def open_cache(line: Line, database: Database, **options: Any) -> Cache[str]:
    cache: Cache[str] = Cache(line, "s", load=database.load, **options)  # type: ignore[arg-type]
    await cache.ready()
    return cache


async def some_turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def test_a_value_is_loaded_once_and_again_after_its_invalidation() -> None:
    async def main() -> None:
        line, database = Line(), Database()
        async with await open_cache(line, database) as cache:
            assert [await cache.get(b"a") for _ in range(3)] == ["a1"] * 3
            assert (database.count, cache.hits, cache.misses) == (1, 2, 1)
            database.rows[b"a"] = "a2"
            await line.invalidates(b"a")
            assert await cache.get(b"a") == "a2"
            await line.invalidates(b"other")
            assert await cache.get(b"a") == "a2"
            assert database.count == 2

    run(main())


def test_a_load_that_began_before_an_invalidation_is_neither_stored_nor_served() -> None:
    async def main() -> None:
        line, database = Line(), Database()
        async with await open_cache(line, database) as cache:
            database.slow = True
            reading = asyncio.ensure_future(cache.get(b"a"))
            await some_turns()  # the old value is read
            database.rows[b"a"] = "a2"  # written
            await line.invalidates(b"a")  # and invalidated, before the read ends
            database.end(0)
            await some_turns()
            assert not reading.done() and b"a" not in cache
            database.end(1)
            assert await reading == "a2"
            assert cache.peek(b"a") == "a2" and cache.reloads == 1

    run(main())


def test_a_value_that_is_invalidated_between_its_load_and_its_reader_is_not_served() -> None:
    async def main() -> None:
        line, database = Line(), Database()
        async with await open_cache(line, database) as cache:
            database.slow = True
            reading = asyncio.ensure_future(cache.get(b"a"))
            await some_turns()
            database.rows[b"a"] = "a2"
            database.end(0)
            while b"a" not in cache:
                await asyncio.sleep(0)
            assert not reading.done(), "the value is stored, and whoever waits for it has not had its turn"
            cache.apply(Span.of("s", 1, data_rows(1, [b"a"], [b""])))
            await some_turns()
            database.end(1)
            assert await reading == "a2"

    run(main())


def test_whoever_asks_after_the_invalidation_does_not_get_the_load_from_before() -> None:
    async def main() -> None:
        line, database = Line(), Database()
        async with await open_cache(line, database) as cache:
            database.slow = True
            early = asyncio.ensure_future(cache.get(b"a"))
            await some_turns()
            database.rows[b"a"] = "a2"
            await line.invalidates(b"a")
            late = asyncio.ensure_future(cache.get(b"a"))
            await some_turns()
            database.end(0)
            await some_turns()
            database.end(1)
            assert (await early, await late) == ("a2", "a2")
            assert database.count == 2

    run(main())


def test_concurrent_gets_share_one_load_and_its_failure() -> None:
    async def main() -> None:
        line, database = Line(), Database()
        async with await open_cache(line, database) as cache:
            database.slow = True
            gets = [asyncio.ensure_future(cache.get(b"a")) for _ in range(5)]
            await some_turns()
            assert database.count == 1
            gets[0].cancel()
            database.end(0)
            assert await asyncio.gather(*gets[1:]) == ["a1"] * 4
            missing = await asyncio.gather(cache.get(b"zz"), cache.get(b"zz"), return_exceptions=True)
            assert [type(each) for each in missing] == [KeyError, KeyError]

    run(main())


def test_a_key_that_is_invalidated_during_every_load_is_reported() -> None:
    async def main() -> None:
        line = Line()

        async def load(key: bytes) -> str:
            await line.invalidates(key)
            return "old"

        cache: Cache[str] = Cache(line, "s", load=load)  # type: ignore[arg-type]
        await cache.ready()
        with pytest.raises(errors.Unsettled, match=f"each of {ATTEMPTS} loads"):
            await cache.get(b"a")
        await cache.close()

    run(main())


def test_an_event_without_a_key_invalidates_everything() -> None:
    async def main() -> None:
        line, database = Line(), Database()
        async with await open_cache(line, database) as cache:
            await cache.get(b"a")
            await cache.get(b"b")
            await line.invalidates(None)
            assert len(cache) == 0

    run(main())


@pytest.mark.parametrize(("gc", "kept"), [("by-key", 1), ("none", 0), ("by-key,keep-last:10", 0)])
def test_missing_numbers_are_harmless_only_where_a_later_event_has_the_key(gc: str, kept: int) -> None:
    async def main() -> None:
        line, database = Line(gc), Database()
        async with await open_cache(line, database) as cache:
            await cache.get(b"a")
            await line.says(Span("s", 1, 4, 9, NO_ROWS))
            assert len(cache) == kept
            await cache.get(b"a")
            await line.says(Span.of("s", 4, before_rows(4, [4])))
            assert len(cache) == (0 if kept else 1)

    run(main())


def test_what_is_lost_may_have_named_any_key() -> None:
    async def main() -> None:
        line, database = Line("by-key"), Database()
        async with await open_cache(line, database) as cache:
            await cache.get(b"a")
            await line.says(Span.declared_lost("s", 1, 4))
            assert len(cache) == 0

    run(main())


def test_the_cache_is_bounded_and_keeps_what_was_used_last() -> None:
    async def main() -> None:
        line = Line()
        cache: Cache[bytes] = Cache(line, "s", load=lambda key: key, max_entries=2)  # type: ignore[arg-type]
        await cache.ready()
        for key in (b"1", b"2", b"1", b"3"):
            assert await cache.get(key) == key
        assert (b"1" in cache, b"2" in cache, b"3" in cache, cache.evicted) == (True, False, True, 1)
        await cache.close()
        with pytest.raises(errors.Closed):
            await cache.get(b"1")

    run(main())


def test_it_says_how_fresh_it_is_and_loads_when_it_is_too_old() -> None:
    async def main() -> None:
        line, database = Line(), Database()
        async with await open_cache(line, database, max_age=5.0) as cache:
            loop = asyncio.get_running_loop()
            assert cache.fresh and cache.age < 1
            await cache.get(b"a")
            line.feed.horizon = 9  # the region has more than has been heard
            line.feed.heard = loop.time() + 100
            line.on_heard(line.feed)
            assert cache.age < 1, "a sign of life alone is not enough"
            cache._complete = loop.time() - 7
            assert not cache.fresh and 6 < cache.age < 9
            database.rows[b"a"] = "a2"
            assert await cache.get(b"a") == "a2", "too old to be served"

    run(main())


def test_a_subscription_that_ends_takes_everything_with_it() -> None:
    async def main() -> None:
        line, database = Line(), Database()
        async with await open_cache(line, database) as cache:
            await cache.get(b"a")
            line.spans_.put_nowait(errors.SubscriptionEnded("stream 's' was deleted"))
            await some_turns()
            assert len(cache) == 0 and not cache.fresh
            database.rows[b"a"] = "a2"
            assert await cache.get(b"a") == "a2"
            assert len(cache) == 0, "nothing is stored while nobody tells of changes"

    run(main())


@pytest.mark.parametrize("ended", [False, True], ids=["at the start", "after another one ended"])
def test_a_load_from_before_the_subscription_is_not_stored_when_that_begins(
    ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidings.client.cache.RETRY", 0.0)

    async def main() -> None:
        line, database = Line(), Database()
        if not ended:
            line.gate.clear()
        cache: Cache[str] = Cache(line, "s", load=database.load)  # type: ignore[arg-type]
        if ended:
            await cache.ready()
            line.gate.clear()
            line.spans_.put_nowait(errors.SubscriptionEnded("the replica is gone"))
        await some_turns()
        database.slow = True
        reading = asyncio.ensure_future(cache.get(b"a"))
        await some_turns()  # the old value is read
        database.rows[b"a"] = "a2"  # written, and invalidated while nobody listens
        line.gate.set()
        await until(lambda: cache.fresh, "subscribed")
        database.slow = False
        database.end(0)
        assert await reading == "a2"
        assert await cache.get(b"a") == "a2"
        await cache.close()

    run(main())


def test_over_sockets_a_write_reaches_every_cache(tmp_path: Path) -> None:
    async def main() -> None:
        rows = {b"k%d" % at: 0 for at in range(10)}
        async with town(tmp_path, regions=2) as cluster, dial(cluster) as writer, dial(cluster, region="r1") as far:
            caches = [tidings.Cache(t, "keyed", load=rows.__getitem__) for t in (writer, far)]
            for cache in caches:
                await cache.ready()
                for key in rows:
                    assert await cache.get(key) == 0
            for version in range(1, 4):
                for key in rows:
                    rows[key] = version
                    ack = await writer.publish("keyed", key=key)
                for cache in caches:
                    await until(lambda cache=cache, ack=ack: cache.version >= ack.hi, "the invalidation is here")
                    assert [await cache.get(key) for key in rows] == [version] * 10
            await until(lambda: all(cache.fresh for cache in caches), "fresh")
            for cache in caches:
                await cache.close()

    run(main())
