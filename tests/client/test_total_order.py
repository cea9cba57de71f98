"""Subscriptions to several streams in one order, through the public API."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

import tidings
from client.rig import dial, run, take, town, until
from tidings import errors
from tidings.client.connection import Connection
from tidings.client.events import Event


async def publish(t: Connection, *streams: str, times: int = 1) -> list[bytes]:
    """One event after the other; the payloads."""
    sent = []
    for _ in range(times):
        for stream in streams:
            sent.append(b"%d" % len(sent))
            await t.publish(stream, payload=sent[-1])
    return sent


def in_order(events: list[Event]) -> bool:
    places = [(event.tick, event.seq) for event in events]
    return places == sorted(set(places))


def test_two_subscribers_in_different_regions_see_one_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            town(tmp_path, 2) as cluster,
            dial(cluster) as t,
            dial(cluster, region="r1") as u,
            t.subscribe("s0", "s1", start="earliest", order="total") as here,
            u.subscribe(["s1", "s0", "keyed"], start="earliest", order="total") as there,
        ):
            sent = await publish(t, "s0", "s1", times=20)
            first, second = await take(here, 40), await take(there, 40)
            assert first == second and in_order(first)
            assert [event.payload for event in first] == sent, "each was published after the one before"
            assert {event.stream for event in first} == {"s0", "s1"}

    run(main())


def test_what_is_published_after_the_subscription_was_opened_comes(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, 2) as cluster, dial(cluster) as t:
            await publish(t, "s0", "s1", times=3)
            async with t.subscribe("s0", "s1", order="total") as sub:
                sent = await publish(t, "s1", "s0", times=3)
                assert [event.payload for event in await take(sub, 6)][-6:] == sent

    run(main())


def test_it_may_begin_at_a_tick_and_events_say_theirs(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            await publish(t, "s0", "keyed", times=5)
            async with t.subscribe("s0", "keyed", order="total", start="earliest") as sub:
                events = await take(sub, 10)
            async with t.subscribe("s0", start=5) as plain:
                assert (await plain.next(5)).tick == events[8].tick, "a plain subscription tells it, too"
            async with t.subscribe("keyed", "s0", order="total", start=events[4].tick) as sub:
                assert await take(sub, 6) == events[4:]

    run(main())


def test_filters_and_batches_and_columns(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            table = pa.table({"payload": [b"%d" % at for at in range(9)], "price": [float(at) for at in range(9)]})
            async with t.subscribe("prices", order="total", where="price >= 4") as sub:
                await t.publish_table("prices", table)
                await t.publish_table("prices", table)
                got = await take(sub, 10)
                assert [event.payload for event in got] == [b"4", b"5", b"6", b"7", b"8"] * 2
                assert len({event.tick for event in got}) == 2
                await publish(t, "prices")
            async with t.subscribe("prices", "s0", order="total", start="earliest") as sub:
                await publish(t, "s0", "prices", "s0")
                rows = []
                async for span in sub.spans():
                    rows += [(span.stream, seq) for seq in range(span.lo, span.hi)]
                    if len(rows) >= 22:
                        break
                assert rows == [("prices", seq) for seq in range(1, 20)] + [("s0", 1), ("prices", 20), ("s0", 2)]

    run(main())


def test_a_durable_one_continues_behind_what_was_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            sent = await publish(t, "s0", "keyed", times=4)
            async with t.subscribe("s0", "keyed", order="total", start="earliest", name="desk") as sub:
                assert [(await sub.next(5)).payload for _ in range(3)] == sent[:3]
                await sub.ack()
            async with t.subscribe("s0", "keyed", order="total", start="earliest", name="desk") as sub:
                assert (await sub.next(5)).payload == sent[3]
                assert (await sub.next(5)).payload == sent[4]  # which acknowledges the one before
            async with t.subscribe("keyed", "s0", order="total", name="desk") as sub:
                assert [(await sub.next(5)).payload for _ in range(4)] == sent[4:]
            async with t.subscribe("s0", name="desk", start="earliest") as plain:
                assert (await plain.next(5)).payload == sent[0], "a plain subscription has its own"

    run(main())


def test_of_a_batch_all_is_acknowledged_or_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            await t.publish_table("s0", pa.table({"payload": [b"a", b"b", b"c"]}))
            await t.publish_table("s0", pa.table({"payload": [b"d", b"e"]}))
            async with t.subscribe("s0", order="total", start="earliest", name="desk") as sub:
                assert [(await sub.next(5)).payload for _ in range(4)] == [b"a", b"b", b"c", b"d"]
                await sub.ack()
            async with t.subscribe("s0", order="total", start="earliest", name="desk") as sub:
                assert [(await sub.next(5)).payload for _ in range(2)] == [b"d", b"e"]

    run(main())


def test_a_newer_subscriber_takes_the_name_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t, dial(cluster) as u:
            await publish(t, "s0", times=3)
            async with t.subscribe("s0", order="total", start="earliest", name="desk") as old:
                await old.next(5)
                async with u.subscribe("s0", order="total", start="earliest", name="desk") as new:
                    with contextlib.suppress(errors.Superseded):
                        await old.next(5)
                    with pytest.raises(errors.Superseded):
                        await old.ack()
                    assert (await new.next(5)).seq in (1, 2)

    run(main())


def test_a_silent_region_raises_and_names_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, 2, 1) as cluster, dial(cluster) as t:
            async with t.subscribe("s0", "s1", order="total", start="earliest", patience=1.5) as sub:
                sent = await publish(t, "s0", "s1")
                assert [event.payload for event in await take(sub, 2)] == sent
                await cluster.kill(cluster.replica(0, "r1"))
                late = await publish(t, "s0", times=2)
                with pytest.raises(errors.OrderStalled) as stalled:
                    await sub.next(20)
            error = stalled.value
            assert (error.region, error.stream) == ("r1", "s1") and "r1" in str(error)
            async with t.subscribe("s0", order="total", start=error.start) as sub:
                assert [event.payload for event in await take(sub, 2)] == late

    run(main())


def test_one_that_cannot_even_begin_raises_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, 2, 1) as cluster, dial(cluster) as t:
            await cluster.kill(cluster.replica(0, "r1"))
            with pytest.raises(errors.OrderStalled) as stalled:
                async with t.subscribe("s0", "s1", order="total", patience=1.0):
                    pass
            assert stalled.value.start == "latest" and stalled.value.region == "r1"

    run(main())


def test_a_stream_that_is_deleted_ends_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            await t.create_stream("brief")
            async with t.subscribe("s0", "brief", order="total", start="earliest") as sub:
                await t.delete_stream("brief")
                with pytest.raises(errors.SubscriptionEnded, match=r"deleted|unknown"):
                    await sub.next(10)

    run(main())


def test_receipts_cover_what_was_handed_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster, client_id="auditor") as t:
            async with t.subscribe("s0", "keyed", order="total", start="earliest", receipts=True) as sub:
                await publish(t, "s0", "keyed", times=10)
                await take(sub, 20)
                await asyncio.sleep(0.1)
            async with t.subscribe("_receipts/r0", start="earliest") as sub:
                seen: dict[str, list[tuple[int, int]]] = {"s0": [], "keyed": []}
                while any(not parts or parts[-1][1] < 11 for parts in seen.values()):
                    event = await sub.next(10)
                    seen[event.attrs["followed"]].append((event.attrs["lo"], event.attrs["hi"]))
            for parts in seen.values():
                assert parts[0][0] == 1 and all(a[1] == b[0] for a, b in pairwise(parts))

    run(main())


def test_the_blocking_client_has_it_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            sent = await publish(t, "s0", "keyed", times=3)

            def read(url: str) -> list[bytes]:
                with tidings.sync.connect(url) as u, u.subscribe("s0", "keyed", order="total", start="earliest") as sub:
                    return [sub.next(5).payload for _ in range(6)]

            assert await asyncio.to_thread(read, cluster.url()) == sent

    run(main())


@pytest.mark.parametrize(
    ("streams", "options", "says"),
    [
        (["s0"], {"order": "odd"}, "publisher"),
        (["s0"], {"patience": 3.0}, "order='total'"),
        (["s0"], {"order": "total", "patience": 0}, "patience"),
        (["s0", "s0"], {"order": "total"}, "each once"),
        ([], {"order": "total"}, "at least one"),
        (["s0"], {"order": "total", "start": "first"}, "start"),
        (["s0"], {"order": "total", "start": 0}, "start"),
        (["s0"], {"order": "total", "name": ""}, "name"),
    ],
)
def test_what_makes_no_sense_is_refused_at_the_call(streams: list[str], options: dict[str, object], says: str) -> None:
    t = tidings.connect("tidings://127.0.0.1:1")
    with pytest.raises(errors.BadInput, match=says):
        t.subscribe(streams, **options)  # type: ignore[arg-type]


def test_what_cannot_be_merged_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            with pytest.raises(errors.UnknownStream):
                async with t.subscribe("s0", "nowhere", order="total"):
                    pass
            with pytest.raises(errors.BadFilter):
                async with t.subscribe("s0", order="total", where="odd = 1"):
                    pass
            with pytest.raises(errors.BadInput, match="no ticks"):
                async with t.subscribe("s0", "_receipts/r0", order="total"):
                    pass

    run(main())


def test_a_subscriber_moves_to_another_replica_and_misses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            town(tmp_path) as cluster,
            dial(cluster) as t,
            dial(cluster) as u,
            t.subscribe("s0", "keyed", order="total", start="earliest") as sub,
        ):
            sent = await publish(u, "s0", "keyed", times=10)
            (merger,) = t._session.machine.mergers.by_id.values()
            source = next(iter(merger.parts.values()))._source()
            await cluster.kill(source)
            await u.publish("s0", payload=b"later")
            got = await take(sub, 21)
            assert [event.payload for event in got] == [*sent, b"later"] and in_order(got)
            await until(lambda: t._session.machine.memberships["r0"].epoch > 1, "the new chain is known")

    run(main())
