"""One-event calls become batches: at once when idle, larger ones under load, never more than the bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from client.rig import dial, run, take, town
from tidings import errors
from tidings.client import batching
from tidings.client.batching import Batcher
from tidings.client.events import Ack
from tidings.core.rows import ArrowRows, Rows, data_rows
from tidings.core.span import MESSAGE_BYTES
from tidings.protocols.services.catalog import StreamDef

STREAM = StreamDef("s", "r0", attrs="n int, s string")


class Publisher:
    """Takes batches and answers when told to."""

    def __init__(self) -> None:
        self.batcher = Batcher(asyncio.get_running_loop(), self._take)
        self.lane = self.batcher.lane(STREAM)
        self.batches: list[tuple[Rows, int]] = []
        self.next = 1
        self.answered = 0

    def _take(self, region: str, stream: str, rows: Rows, tag: int) -> None:
        self.batches.append((rows, tag))

    def post(self, count: int) -> None:
        for _ in range(count):
            self.batcher.put(self.lane, b"k", b"x", None)

    @property
    def sizes(self) -> list[int]:
        return [rows.count for rows, _ in self.batches]

    def answer(self, count: int = 1) -> None:
        for rows, tag in self.batches[self.answered : self.answered + count]:
            self.answered += 1
            self.batcher.acked(tag, self.next, self.next + rows.count)
            self.next += rows.count


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_what_the_turn_of_a_lane_has_submitted_is_prompted_once() -> None:
    async def main() -> None:
        publisher = Publisher()
        prompted: list[list[int]] = []
        publisher.batcher._prompt = lambda: prompted.append(publisher.sizes)
        publisher.post(3)
        assert prompted == []
        await turn()
        assert prompted == [[3]]
        publisher.post(batching.CHUNK)  # full: handed on within `post`, on whose way the application waits
        assert publisher.sizes == [3, batching.CHUNK]
        await turn()
        assert prompted == [[3]]

    run(main())


def test_while_idle_what_was_posted_leaves_on_the_next_turn() -> None:
    async def main() -> None:
        publisher = Publisher()
        for _ in range(3):
            publisher.post(3)
            await turn()
            publisher.answer()
        assert publisher.sizes == [3, 3, 3]

    run(main())


def test_while_busy_it_waits_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "QUIET", 60.0)
    monkeypatch.setattr(batching, "WAIT", 60.0)

    async def main() -> None:
        publisher = Publisher()
        for _ in range(batching.BUSY):
            publisher.post(1)
            await turn()
        for _ in range(10):
            publisher.post(10)
            await turn()
        assert publisher.sizes == [1] * batching.BUSY
        publisher.answer()
        assert publisher.sizes[batching.BUSY :] == [100]

    run(main())


def test_after_a_large_batch_the_next_one_is_given_time_to_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "QUIET", 60.0)

    async def main() -> None:
        publisher = Publisher()
        publisher.post(batching.FEW)
        await turn()
        publisher.answer()
        publisher.post(7)
        await turn()
        assert publisher.sizes == [batching.FEW]
        await asyncio.sleep(20 * batching.WAIT)
        assert publisher.sizes == [batching.FEW, 7]

    run(main())


def test_a_batch_is_full_at_so_many_events_or_bytes() -> None:
    async def main() -> None:
        publisher = Publisher()
        publisher.post(batching.CHUNK + 5)
        assert publisher.sizes == [batching.CHUNK]
        for _ in range(3):
            publisher.batcher.put(publisher.lane, None, bytes(batching.CHUNK_BYTES // 2), None)
        assert publisher.sizes == [batching.CHUNK, 7]

    run(main())


def test_a_publisher_is_given_no_more_than_its_window_and_posts_are_bounded() -> None:
    async def main() -> None:
        publisher = Publisher()
        with pytest.raises(errors.Full, match="await drain"):
            publisher.post(batching.PENDING + batching.CHUNK + 1)
        assert len(publisher.batches) == batching.WINDOW
        assert publisher.batcher.pending == batching.PENDING
        draining = asyncio.ensure_future(publisher.batcher.drain())
        await turn()
        assert not draining.done()
        while publisher.answered < len(publisher.batches) and publisher.batcher.crowded:
            publisher.answer()
        await asyncio.wait_for(draining, 5)
        publisher.post(1)

    run(main())


def test_flush_waits_for_what_was_posted_before_it_and_says_where_it_is() -> None:
    async def main() -> None:
        publisher = Publisher()
        publisher.post(3)
        waiting = publisher.batcher.put_waiting(publisher.lane, b"k", b"y", {"n": 1})
        flushing = asyncio.ensure_future(publisher.batcher.flush())
        await turn()
        assert publisher.sizes == [4] and not flushing.done()
        publisher.answer()
        assert await flushing == [Ack("s", 1, 5)]
        assert await waiting == Ack("s", 4, 5)
        assert await publisher.batcher.flush() == []

    run(main())


def test_what_failed_is_named_and_what_did_not_is_acknowledged() -> None:
    async def main() -> None:
        publisher = Publisher()
        publisher.post(2)
        await turn()
        publisher.post(1)
        await turn()
        flushing = asyncio.ensure_future(publisher.batcher.flush())
        await turn()
        publisher.answer()
        publisher.batcher.refused(publisher.batches[1][1], errors.UnknownStream("stream 's' is gone"))
        with pytest.raises(errors.PublishFailed, match=r"1 of s \(not published; keys b'k'") as failed:
            await flushing
        assert failed.value.acks == (Ack("s", 1, 3),)
        assert [(each.count, each.in_doubt) for each in failed.value.failed] == [(1, False)]

    run(main())


def test_every_flush_that_waits_is_told_of_what_failed() -> None:
    async def main() -> None:
        publisher = Publisher()
        publisher.post(2)
        one = asyncio.ensure_future(publisher.batcher.flush())
        await turn()
        publisher.post(1)
        two = asyncio.ensure_future(publisher.batcher.flush())
        await turn()
        publisher.post(1)
        three = asyncio.ensure_future(publisher.batcher.flush())
        await turn()
        publisher.answer()
        assert await one == [Ack("s", 1, 3)]
        publisher.batcher.refused(publisher.batches[1][1], errors.UnknownStream("stream 's' is gone"))
        publisher.answered += 1
        publisher.answer()
        told = await asyncio.gather(two, three, return_exceptions=True)
        assert [[each.count for each in error.failed] for error in told if isinstance(error, errors.PublishFailed)] == [
            [1],
            [1],
        ]
        assert [error.acks for error in told if isinstance(error, errors.PublishFailed)] == [
            (Ack("s", 1, 3),),
            (Ack("s", 1, 4),),
        ]
        assert await publisher.batcher.flush() == [], "what was told is not told again"

    run(main())


def test_a_flush_that_was_given_up_leaves_what_it_waited_for_to_the_next() -> None:
    async def main() -> None:
        publisher = Publisher()
        publisher.post(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(publisher.batcher.flush(), 0.01)
        publisher.batcher.refused(publisher.batches[0][1], errors.UnknownStream("stream 's' is gone"))
        with pytest.raises(errors.PublishFailed):
            await publisher.batcher.flush()
        assert not publisher.batcher._failures and await publisher.batcher.flush() == []

    run(main())


def test_a_fenced_publisher_fails_what_is_sent_in_doubt_and_the_rest_for_certain() -> None:
    async def main() -> None:
        publisher = Publisher()
        publisher.post(1)
        await turn()
        publisher.post(1)
        publisher.batcher.fail("r0", errors.Fenced("a newer client"))
        with pytest.raises(errors.PublishFailed) as failed:
            await publisher.batcher.flush()
        assert [each.in_doubt for each in failed.value.failed] == [True, False]
        with pytest.raises(errors.Fenced):
            publisher.post(1)

    run(main())


def test_values_that_no_column_can_hold_fail_with_their_batch() -> None:
    async def main() -> None:
        publisher = Publisher()
        lane = publisher.batcher.lane(StreamDef("t", "r0", attrs="price double"))
        publisher.batcher.put(lane, None, b"x", {"price": 1 << 2000})
        with pytest.raises(errors.PublishFailed) as failed:
            await publisher.batcher.flush()
        assert failed.value.failed[0].in_doubt is False

    run(main())


def test_attributes_are_those_of_the_call_though_the_caller_uses_the_dict_again() -> None:
    async def main() -> None:
        publisher = Publisher()
        attrs: dict[str, Any] = {}
        for n in range(3):
            attrs["n"] = n
            publisher.batcher.put(publisher.lane, None, b"x", attrs)
        await turn()
        ((rows, _),) = publisher.batches
        assert isinstance(rows, ArrowRows)
        assert rows.batch.column("n").to_pylist() == [0, 1, 2]

    run(main())


@pytest.mark.parametrize(("kind", "value"), [("string", "x" * 4096), ("string", "ä" * 2048), ("binary", b"x" * 4096)])
def test_attributes_count_towards_the_size_of_a_batch_and_of_an_event(kind: str, value: Any) -> None:
    async def main() -> None:
        publisher = Publisher()
        lane = publisher.batcher.lane(StreamDef("t", "r0", attrs=f"loc {kind}"))
        for _ in range(1024):
            publisher.batcher.put(lane, None, b"x", {"loc": value})
        assert len(publisher.batches) == 4
        assert all(rows.nbytes < 2 * batching.CHUNK_BYTES for rows, _ in publisher.batches)
        with pytest.raises(errors.PayloadTooLarge, match="attributes"):
            publisher.batcher.put(lane, None, b"x", {"loc": value * 257})

    run(main())


def test_columns_count_for_events_that_have_nothing_in_them() -> None:
    async def main() -> None:
        publisher = Publisher()
        lane = publisher.batcher.lane(StreamDef("t", "r0", attrs=", ".join([f"a{at} double" for at in range(250)])))
        for at in range(batching.CHUNK):
            publisher.batcher.put(lane, None, b"x", {"a0": 1.0} if at == 200 else None)
        assert max(rows.nbytes for rows, _ in publisher.batches) < 2 * batching.CHUNK_BYTES

    run(main())


def test_a_batch_that_no_message_carries_is_refused_at_the_call() -> None:
    async def main() -> None:
        publisher = Publisher()
        with pytest.raises(errors.PayloadTooLarge, match="a batch of"):
            publisher.batcher.put_rows(publisher.lane, [data_rows(1, None, [bytes(MESSAGE_BYTES)])])
        publisher.post(1)
        await turn()
        assert publisher.sizes == [1]

    run(main())


ATTRIBUTES: list[tuple[str, Any]] = [
    ("n", True),
    ("n", 1 << 31),
    ("n", -(1 << 31) - 1),
    ("n", "1"),
    ("m", 1),
    ("s", "\ud800"),
]


@pytest.mark.parametrize(("name", "value"), ATTRIBUTES)
def test_an_attribute_that_does_not_fit_is_refused_at_the_call(name: str, value: Any) -> None:
    async def main() -> None:
        publisher = Publisher()
        with pytest.raises(errors.BadAttribute, match=f"'{name}'"):
            publisher.batcher.put(publisher.lane, None, b"x", {name: value})
        publisher.post(1)
        await turn()
        assert publisher.sizes == [1]

    run(main())


def test_the_least_and_the_largest_number_of_a_type_fit() -> None:
    async def main() -> None:
        publisher = Publisher()
        for n in (-(1 << 31), (1 << 31) - 1):
            publisher.batcher.put(publisher.lane, None, b"x", {"n": n})
        await turn()
        assert publisher.sizes == [2]

    run(main())


def test_over_sockets_posts_under_load_become_few_batches_and_one_when_idle(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            await t.publish("s0", payload=b"session")
            before = t._batcher.batches
            await t.publish("s0", payload=b"alone")
            assert t._batcher.batches == before + 1
            before = t._batcher.batches
            for at in range(20_000):
                t.post("s0", payload=b"%d" % at)
                if at % 512 == 0:
                    await t.drain()
            (ack,) = await t.flush()
            assert ack.hi - ack.lo == 20_000
            assert t._batcher.batches - before < 60
            async with t.subscribe("s0", start=ack.lo) as sub:
                assert [e.payload for e in await take(sub, 20_000)] == [b"%d" % at for at in range(20_000)]

    run(main())
