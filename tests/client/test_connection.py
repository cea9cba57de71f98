"""Publishing and subscribing over real sockets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidings
from client.rig import Town, dial, free_port, run, take, town, until
from tidings import errors
from tidings.client.connection import Connection
from tidings.client.tables import batches_of
from tidings.core.span import MESSAGE_BYTES
from tidings.protocols.fabrics.views import Views
from tidings.protocols.services.catalog import StreamDef


async def published(t: Connection, stream: str, count: int) -> None:
    for at in range(count):
        t.post(stream, key=b"k%d" % (at % 5), payload=b"%d" % at)
    await t.flush()


def test_what_is_published_comes_back_in_order_and_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster, "web-17") as t:
            ack = await t.publish("s0", key=b"k", payload=b"hello")
            assert (ack.seq, ack.lo, ack.hi) == (1, 1, 2)
            for at in range(5000):
                t.post("s0", key=b"k", payload=b"%d" % at)
            (flushed,) = await t.flush()
            assert (flushed.lo, flushed.hi) == (2, 5002)
            assert await t.flush() == []
            async with t.subscribe("s0", start="earliest") as sub:
                events = await take(sub, 5001)
            assert [event.payload for event in events] == [b"hello", *[b"%d" % at for at in range(5000)]]
            assert [event.seq for event in events] == list(range(1, 5002))
            assert {(e.stream, e.kind, e.key, e.region) for e in events} == {("s0", "data", b"k", "r0")}
            assert abs((datetime.now(UTC) - events[0].published_at).total_seconds()) < 60
            assert dict(events[0].attrs) == {}

    run(main())


def test_attributes_filters_and_tables(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            where = "loc = 'NY' and price > 3"
            async with t.subscribe("prices", where=where, start="earliest") as sub:
                await t.publish("prices", key=b"a", payload=b"1", attrs={"loc": "NY", "price": 4.5})
                await t.publish("prices", key=b"b", payload=b"2", attrs={"loc": "LA", "price": 9})
                await t.publish("prices", key=b"c", payload=b"3")
                table = pa.table({"key": [b"d", b"e"], "loc": ["NY", "NY"], "price": pa.array([2, 5], pa.int32())})
                ack = await t.publish_table("prices", table)
                assert (ack.lo, ack.hi, ack.parts) == (4, 6, ((4, 6),))
                found = await take(sub, 2)
                assert [(e.seq, e.key, dict(e.attrs)) for e in found] == [
                    (1, b"a", {"loc": "NY", "price": 4.5}),
                    (5, b"e", {"loc": "NY", "price": 5.0}),
                ]
            large = pa.table({"payload": pa.array([b"%d" % at for at in range(40_000)], pa.binary())})
            ack = await t.publish_table("prices", large)
            assert (ack.lo, ack.hi) == (6, 40_006)
            async with t.subscribe("prices", start=ack.lo) as sub:
                rows = 0
                payloads: list[bytes] = []
                async for span in sub.spans():
                    assert span.lo == 6 + rows and span.count == span.hi - span.lo
                    assert span.rows.column("seq").to_pylist() == list(range(span.lo, span.hi))
                    payloads += span.rows.column("payload").to_pylist()
                    rows += span.count
                    if rows == 40_000:
                        break
                assert payloads == [b"%d" % at for at in range(40_000)]

    run(main())


def test_a_subscription_begins_where_it_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            await published(t, "s0", 10)
            async with (
                t.subscribe("s0", start="earliest") as earliest,
                t.subscribe("s0", start=7) as seventh,
                t.subscribe("s0", start="latest") as latest,
                t.subscribe("s0", "keyed", start="earliest") as both,
            ):
                await t.publish("s0", payload=b"new")
                await t.publish("keyed", key=b"k", payload=b"other")
                assert [e.seq for e in await take(earliest, 11)] == list(range(1, 12))
                assert [e.seq for e in await take(seventh, 5)] == list(range(7, 12))
                assert [e.payload for e in await take(latest, 1)] == [b"new"]
                assert sorted((e.stream, e.seq) for e in await take(both, 12)) == [
                    ("keyed", 1),
                    *[("s0", seq) for seq in range(1, 12)],
                ]

    run(main())


def test_a_loop_may_be_left_and_another_one_continues_behind_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, replicas=1) as cluster, dial(cluster) as t:
            await published(t, "s0", 9)
            async with t.subscribe("s0", start="earliest") as sub:
                got = [e.seq for e in await take(sub, 2)] + [e.seq for e in await take(sub, 2)]
                got.append((await sub.next(5)).seq)
                got += [e.seq for e in await sub.events(5)]
                assert got == list(range(1, 10))
                with pytest.raises(TimeoutError):
                    await sub.next(0.05)
                await t.publish("s0", payload=b"late")
                assert (await sub.next(5)).seq == 10

    run(main())


def test_collecting_asking_why_and_defining_streams(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            await published(t, "prices", 6)
            async with t.lease("prices"):  # what collected a number is known for as long as its row is
                assert (await t.collect("prices", before=4)).seq == 7
                assert (await t.collect("prices", where="key = 'k4'")).seq == 8
                states = {seq: (r := await t.why("prices", seq)) and (r.state, r.by) for seq in (1, 4, 5, 8, 99)}
            collected = {seq: states[seq] for seq in (1, 5)}
            assert collected == {1: ("collected", 7), 5: ("collected", 8)}
            assert (states[4], states[8], states[99]) == (("row", None), ("row", None), ("not published yet", None))
            async with t.subscribe("prices", start="earliest") as sub:
                events = await take(sub, 4)
            assert [(e.seq, e.kind) for e in events] == [(4, "data"), (6, "data"), (7, "gc"), (8, "gc")]
            assert [dict(e.attrs) for e in events[2:]] == [{"before": 4}, {"where": "() key = X'6B34'"}]
            created = await t.create_stream("fresh", attrs="n int", gc="by-key")
            assert (created.name, created.region, created.gc, created.attrs) == ("fresh", "r0", "by-key", "n int")
            async with t.subscribe("fresh", start="earliest") as sub:
                await t.publish("fresh", key=b"k", attrs={"n": 3})
                assert (await sub.next(10)).attrs == {"n": 3}
            await t.alter_stream("fresh", attrs="n int, m string")
            await t.publish("fresh", key=b"j", attrs={"m": "x"})
            while (info := await t.stream("fresh")).horizon < 3:  # the replica that is asked may hear of it later
                await asyncio.sleep(0.01)
            assert (info.attrs, info.horizon, info.live) == ("n int, m string", 3, 2)
            with pytest.raises(errors.BadInput, match="exists with other settings"):
                await t.create_stream("fresh")
            await t.delete_stream("fresh")
            while "fresh" in [stream.name for stream in await t.streams()]:
                await asyncio.sleep(0.01)

    run(main())


def test_nobody_goes_on_in_a_stream_that_was_created_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t, dial(cluster, "peer", peer=True) as peer:
            first = await t.create_stream("daily")
            await published(t, "daily", 5)
            desk = await t.subscribe("daily", start="earliest", name="desk").open()
            await take(desk, 5)
            await desk.ack()
            tapped = await peer.subscribe("daily", start="earliest").open()
            await take(tapped, 5)
            lease = await t.lease("daily", ttl=30.0).open()
            await t.delete_stream("daily")
            second = await t.create_stream("daily")
            assert second.id != first.id and (await t.publish("daily", payload=b"anew")).seq == 1
            while "daily" not in [info.name for info in await peer.streams() if info.id == second.id]:
                await asyncio.sleep(0.01)  # a peer looks by itself every half a minute
            for old in (desk, tapped):
                with pytest.raises(errors.SubscriptionEnded, match="'daily'"):
                    await old.next(30.0)
                await old.close()
            with pytest.raises(errors.LeaseExpired):
                await until(lambda: lease.check() or False, "the lease ends")
            for opening in (t.subscribe("daily", name="desk", start="earliest"), peer.subscribe("daily", start=1)):
                async with opening as sub:
                    assert [(e.seq, e.payload) for e in await take(sub, 1)] == [(1, b"anew")]

    run(main())


def test_what_was_meant_for_a_deleted_stream_is_not_published_to_the_one_created_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t, dial(cluster) as other:
            first = await t.create_stream("daily")
            await t.publish("daily", payload=b"old")
            await other.delete_stream("daily")
            second = await other.create_stream("daily")
            with pytest.raises(errors.UnknownStream):
                await t.collect(first.id, before=2)
            while True:  # what is published by name goes to the stream that has it, once this client has heard of it
                try:
                    ack = await t.publish("daily", payload=b"new")
                    break
                except errors.UnknownStream:
                    await t.streams()
            assert ack.seq == 1 and (await t.stream("daily")).id == second.id
            with pytest.raises(errors.UnknownStream):
                await t.delete_stream(first.id)
            async with t.subscribe("daily", start="earliest") as sub:
                assert [(e.seq, e.payload) for e in await take(sub, 1)] == [(1, b"new")]

    run(main())


def test_a_stream_of_another_region_is_published_at_its_owner_and_read_at_home(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, regions=2) as cluster, dial(cluster, "w", region="r1") as t:
            assert t.region == "r1"
            async with t.subscribe("s0", start="earliest") as sub:
                ack = await t.publish("s0", payload=b"far")
                await t.publish("s1", payload=b"near")
                event = await sub.next(15)
                assert (event.seq, event.region, event.payload) == (ack.seq, "r0", b"far")

    run(main())


@pytest.mark.parametrize("peer", [False, True])
def test_a_filter_changes_while_the_subscription_is_open_exactly_from_the_number_it_returns(
    peer: bool, tmp_path: Path
) -> None:
    async def main() -> None:
        async with (
            town(tmp_path) as cluster,
            dial(cluster) as t,
            dial(cluster, peer=peer) as reader,
            reader.subscribe("prices", where="price < 100", start="earliest") as sub,
        ):
            got: list[tuple[int, float]] = []
            switch = 0
            for at in range(60):
                await t.publish("prices", attrs={"loc": "NY", "price": float(at % 3 * 100)})
                if at == 20:
                    with pytest.raises(errors.BadFilter):
                        await sub.where("price >")
                    switch = (await sub.where("price >= 100"))["prices"]
            prices = {number: float((number - 1) % 3 * 100) for number in range(1, 61)}
            due = [n for n, price in prices.items() if (price < 100 if n < switch else price >= 100)]
            while len(got) < len(due):
                event = await sub.next(timeout=20.0)
                got.append((event.seq, event.attrs["price"]))
            assert [seq for seq, _ in got] == due and 0 < switch <= 22
            assert [prices[seq] for seq, _ in got] == [price for _, price in got]

    run(main())


def test_what_is_wrong_is_a_typed_error_that_says_what_to_do(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster:
            t = dial(cluster)
            with pytest.raises(errors.Closed):
                await t.publish("s0")
            async with t:
                with pytest.raises(errors.UnknownStream, match=r"'pricse' is unknown .* did you mean 'prices'\?"):
                    t.post("pricse", payload=b"x")
                with pytest.raises(errors.UnknownStream):
                    await t.publish("nothing")
                assert "did you mean" not in str(t._streams.unknown("prices"))  # deleted, and this client knew it
                with pytest.raises(errors.UnknownStream):
                    async with t.subscribe("nothing"):
                        pass
                with pytest.raises(errors.BadAttribute, match="'price' is declared double, not str"):
                    t.post("prices", attrs={"price": "4"})
                with pytest.raises(errors.BadAttribute, match="'colour' is not declared; declared are: loc, price"):
                    await t.publish("prices", attrs={"colour": "red"})
                with pytest.raises(errors.BadAttribute):
                    await t.publish_table("prices", pa.table({"price": ["4"]}))
                with pytest.raises(errors.PayloadTooLarge, match="limit is 1048576"):
                    await t.publish("s0", payload=bytes(1 << 21))
                with pytest.raises(errors.BadInput, match="payload is bytes, not str"):
                    t.post("s0", payload="text")  # type: ignore[arg-type]
                for where in ("rand() > 1", "colour = 'red'", "price >"):
                    with pytest.raises(errors.BadFilter) as bad:
                        async with t.subscribe("prices", where=where):
                            pass
                    assert bad.value.line == 1 and bad.value.column >= 1
                with pytest.raises(errors.NotBuilt):
                    t.join("replicas")
                with pytest.raises(errors.BadInput):
                    t.subscribe("s0", start=0)
                with pytest.raises(errors.NotFinal):
                    await t.collect("keyed", where="seq > 3")
                assert [ack async for ack in _none()] == []
                await t.publish("s0", payload=b"still here")
                assert await t.flush() == []
            with pytest.raises(errors.Closed):
                await t.publish("s0")

    run(main())


async def _none():  # type: ignore[no-untyped-def]
    return
    yield


@pytest.mark.parametrize("wrong", [{"key": ""}, {"key": 0}, {"key": "k"}, {"payload": ""}, {"payload": None}])
def test_a_post_that_is_no_bytes_is_refused_and_the_others_of_its_batch_are_not(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    async def main() -> None:
        async with town(tmp_path, replicas=1) as cluster, dial(cluster) as t:
            t.post("s0", payload=b"before")
            with pytest.raises(errors.BadInput, match=f"{next(iter(wrong))} is bytes, not"):
                t.post("s0", **wrong)
            t.post("s0", payload=b"after")
            assert [(ack.lo, ack.hi) for ack in await t.flush()] == [(1, 3)]

    run(main())


TOO_LARGE: list[dict[str, list[Any]]] = [
    {"key": [bytes(1 << 21)]},
    {"key": [bytes(1 << 19)], "payload": [bytes(1 << 19)], "loc": ["x"]},
    {"loc": ["a", "x" * (1 << 21)]},
]


@pytest.mark.parametrize("columns", TOO_LARGE, ids=["key", "together", "attribute"])
def test_a_row_of_a_table_that_is_too_large_is_refused_and_the_session_goes_on(
    columns: dict[str, list[Any]], tmp_path: Path
) -> None:
    async def main() -> None:
        async with town(tmp_path, replicas=1) as cluster, dial(cluster) as t:
            with pytest.raises(errors.PayloadTooLarge, match=r"of row [01] have \d+ bytes; the limit is 1048576"):
                await t.publish_table("prices", pa.table(columns))
            assert (await t.publish("prices", payload=b"small")).seq == 1

    run(main())


def test_a_table_whose_large_rows_stand_together_is_cut_into_batches_that_fit() -> None:
    payloads = [bytes(1_000_000)] * 12 + [b""] * 40_000
    rows = batches_of(StreamDef("s0", "r0"), pa.table({"payload": pa.array(payloads, pa.binary())}))
    assert sum(each.count for each in rows) == len(payloads)
    assert max(each.nbytes for each in rows) < MESSAGE_BYTES


@pytest.mark.parametrize("reason", ["size", "rows"])
def test_a_refused_batch_is_a_typed_error_of_that_batch(reason: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, replicas=1) as cluster, dial(cluster) as t:
            cluster.machine(0).table.misfit = lambda stream, rows: reason if rows.count == 2 else ""
            with pytest.raises(errors.PayloadTooLarge if reason == "size" else errors.PublishFailed):
                await t.publish_table("s0", pa.table({"payload": pa.array([b"1", b"2"])}))
            assert (await t.publish("s0", payload=b"small")).seq == 1

    run(main())


async def entered(opening: Any) -> None:
    async with opening:
        raise AssertionError("it was taken")


WRONG: dict[str, Callable[[Any], Any]] = {
    "start too large": lambda t: entered(t.subscribe("s0", start=1 << 63)),
    "start negative": lambda t: entered(t.subscribe("s0", start=-1)),
    "start of the wrong type": lambda t: entered(t.subscribe("s0", start=1.5)),
    "start another word": lambda t: entered(t.subscribe("s0", start="soon")),
    "subscribe stream": lambda t: entered(t.subscribe(5)),
    "subscribe streams": lambda t: entered(t.subscribe(["s0", None])),
    "subscribe where": lambda t: entered(t.subscribe("s0", where=5)),
    "name of the wrong type": lambda t: entered(t.subscribe("s0", name=5)),
    "name empty": lambda t: entered(t.subscribe("s0", name="")),
    "name too long": lambda t: entered(t.subscribe("s0", name="x" * 1100)),
    "name no text": lambda t: entered(t.subscribe("s0", name="\ud800")),
    "why too large": lambda t: t.why("s0", 1 << 63),
    "why negative": lambda t: t.why("s0", -1),
    "why no number": lambda t: t.why("s0", "1"),
    "why yes": lambda t: t.why("s0", True),
    "read hi": lambda t: entered(t.read("s0", 1, 1 << 63)),
    "read lo": lambda t: entered(t.read("s0", 0, 5)),
    "read asof": lambda t: entered(t.read("s0", 1, 2, asof=1 << 70)),
    "read replica": lambda t: entered(t.read("s0", 1, 2, replica="0")),
    "collect too large": lambda t: t.collect("s0", before=1 << 63),
    "collect where": lambda t: t.collect("s0", where=5),
    "lease asof": lambda t: entered(t.lease("s0", asof=-1)),
    "lease ttl negative": lambda t: entered(t.lease("s0", ttl=-1)),
    "lease ttl nan": lambda t: entered(t.lease("s0", ttl=float("nan"))),
    "lease bytes": lambda t: entered(t.lease("s0", bytes=-5)),
    "lease name": lambda t: entered(t.lease("s0", name="\ud800")),
    "create gc": lambda t: t.create_stream("z", gc=None),
    "create attrs": lambda t: t.create_stream("z", attrs=5),
    "create region": lambda t: t.create_stream("z", region=5),
    "create name of the wrong type": lambda t: t.create_stream(5),
    "create name no text": lambda t: t.create_stream("z\ud800"),
    "create name too long": lambda t: t.create_stream("z" * 100_000),
    "alter attrs": lambda t: t.alter_stream("s0", attrs=None),
    "sink part": lambda t: t.sink("s0", writer="w", query="q", batch=1).part(-1),
    "sink batch": lambda t: t.sink("s0", writer="w", query="q", batch=1 << 63),
    "sink run": lambda t: t.sink("s0", writer="w", query="q", batch=1, run=-1),
    "sink writer": lambda t: t.sink("s0", writer=5, query="q", batch=1),
    "sink stream": lambda t: t.sink(5, writer="w", query="q", batch=1),
    "publish stream": lambda t: t.publish(5),
    "publish stream no text": lambda t: t.publish("\ud800"),
    "post stream": lambda t: t.post(None),
    "post attrs": lambda t: t.post("prices", attrs=5),
    "table": lambda t: t.publish_table("s0", [1, 2]),
    "pattern": lambda t: t.streams(5),
    "describe": lambda t: t.describe("\ud800"),
    "client_id": lambda t: tidings.connect("tidings://127.0.0.1", client_id=5),
    "url": lambda t: tidings.connect(5),
}


def test_a_value_that_makes_no_sense_is_refused_at_the_call_and_the_connection_goes_on(tmp_path: Path) -> None:
    async def told(call: Callable[[Any], Any], t: Connection) -> BaseException | None:
        try:
            async with asyncio.timeout(2.0):
                called = call(t)
                if asyncio.iscoroutine(called):
                    await called
        except Exception as error:
            return error
        return None

    async def main() -> None:
        async with town(tmp_path, replicas=1) as cluster, dial(cluster) as t:
            found = {what: await told(call, t) for what, call in WRONG.items()}
            assert {what: error for what, error in found.items() if not isinstance(error, errors.BadInput)} == {}
            async with t.lease("s0") as lease:
                with pytest.raises(errors.BadInput, match="asof=-1: it is an integer from 1"):
                    await lease.move(-1)
            assert (await t.publish("s0", payload=b"still here")).seq == 1
            assert t._session.host.counters["dials"] == 1, "no message of these has cost the connection"

    run(main())


def test_before_it_is_open_a_connection_says_so() -> None:
    async def main() -> None:
        t = tidings.connect("tidings://127.0.0.1")
        with pytest.raises(errors.Closed, match="is not open"):
            t.region  # noqa: B018
        for call in (t.create_stream("z"), t.streams(), t.describe(), t.flush(), t.why("s0", 1)):
            with pytest.raises(errors.Closed, match="is not open"):
                await call

    run(main())


def test_nobody_at_the_address_is_unreachable() -> None:
    async def main() -> None:
        with pytest.raises(errors.Unreachable, match="is the cluster up"):
            async with tidings.connect(f"tidings://127.0.0.1:{free_port()}", timeout=0.3):
                pass

    run(main())


def test_another_cluster_refuses_and_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, replicas=1) as cluster:
            with pytest.raises(errors.Unreachable, match="this is cluster 'tidings'"):
                async with dial(cluster, cluster="other", timeout=0.5):
                    pass

    run(main())


def test_a_newer_client_of_the_same_id_fences_the_older(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster, "same") as old:
            await old.publish("s0", payload=b"1")
            async with dial(cluster, "same") as new:
                await new.publish("s0", payload=b"2")
                with pytest.raises(errors.Fenced, match="'same'"):
                    await old.publish("s0", payload=b"3")
                with pytest.raises(errors.Fenced):
                    old.post("s0", payload=b"4")
                assert (await new.publish("s0", payload=b"5")).seq == 3

    run(main())


def test_a_batch_that_its_owner_refuses_fails_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t, dial(cluster) as other:
            await t.create_stream("doomed")
            await t.publish("doomed", payload=b"1")
            await other.delete_stream("doomed")
            t.post("s0", payload=b"before")
            t.post("doomed", key=b"k", payload=b"lost")
            t.post("s0", payload=b"after")
            with pytest.raises(errors.PublishFailed, match="1 posted events are not durable: 1 of doomed") as failed:
                await t.flush()
            (lost,) = failed.value.failed
            assert (lost.stream, lost.keys, lost.payloads, lost.in_doubt) == ("doomed", [b"k"], [b"lost"], False)
            assert [(ack.stream, ack.hi - ack.lo) for ack in failed.value.acks] in ([("s0", 2)], [("s0", 1)] * 2)
            async with t.subscribe("s0", start="earliest") as sub:
                assert [e.payload for e in await take(sub, 2)] == [b"before", b"after"]

    run(main())


def test_import_is_light_and_every_name_is_there() -> None:
    code = "import sys, tidings; print([m for m in ('pyarrow', 'numpy', 'asyncio', 'pyspark') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    code = "import sys, tidings; [getattr(tidings, n) for n in tidings.__all__]; print('numba' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
    with pytest.raises(AttributeError):
        tidings.nothing  # noqa: B018


def test_peers_of_the_fabric_receive_what_is_published_and_forward_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            town(tmp_path, replicas=1) as cluster,
            dial(cluster) as t,
            dial(cluster, "peer-0", peer=True) as one,
            dial(cluster, "peer-1", peer=True) as two,
            dial(cluster, "peer-2", peer=True) as three,
        ):
            peers = (one, two, three)
            await published(t, "s0", 20)
            subs = [await peer.subscribe("s0", start="earliest").open() for peer in peers]
            await until(lambda: all(len(views(peer).peers()) == 2 for peer in peers), "gossip")
            tapped = await one.subscribe("s0", where="seq > 30", start="latest").open()
            for at in range(20, 60):
                await t.publish("s0", payload=b"%d" % at)
            for sub in subs:
                assert [e.payload for e in await take(sub, 60)] == [b"%d" % at for at in range(60)]
            assert [e.seq for e in await take(tapped, 30)] == list(range(31, 61))
            assert all(not peer._session.machine.subscribers for peer in peers), "the fabric feeds them by now"
            assert any(len(peer._session.host.peers) > 1 for peer in peers), "peers have dialled each other"

    run(main())


def views(peer: Connection) -> Views:
    assert peer._session.machine.fabric is not None
    return peer._session.machine.fabric.client.fabric.views


def test_the_url_may_name_several_addresses(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = Town(tmp_path, replicas=1)
        await cluster.start()
        url = f"tidings://127.0.0.1:{free_port()},{cluster.url().removeprefix('tidings://')}"
        async with tidings.connect(url) as t:
            assert (await t.publish("s0", payload=b"x")).seq == 1
        await cluster.stop()

    run(main())
