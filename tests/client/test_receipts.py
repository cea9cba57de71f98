"""Subscribers tell their region what they were handed: once a second, in few rows, without being slowed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from client.rig import dial, run, town, until
from tidings.client import receipts
from tidings.client.receipts import Account, ReceiptLedger
from tidings.core.lens import Lens
from tidings.core.rows import NO_ROWS, data_rows
from tidings.core.span import Span
from tidings.protocols.services.receipts import MOST, NAMES, Receipt, receipts_of


def full(lo: int, hi: int) -> Span:
    return Span.of("s", lo, data_rows(lo, None, [b"%d" % at for at in range(lo, hi)]))


def collected(lo: int, hi: int, asof: int) -> Span:
    return Span("s", lo, hi, asof, NO_ROWS)


def account() -> Account:
    return Account("desk", 7, "s")


def test_published_batches_in_a_row_are_one_receipt() -> None:
    mine = account()
    parts = [full(1, 4), full(4, 5), full(5, 9)]
    assert [mine.note(part, at) for at, part in enumerate(parts)] == [None] * 3
    whole = full(1, 9)
    assert mine.close() == Receipt("desk", 7, 1, "s", 1, 9, 1, "", 8, whole.rows.hash_sum, 2)
    assert mine.close() is None


def test_full_spans_are_stated_as_of_the_smaller_number() -> None:
    mine = account()
    again = Span("s", 1, 4, 9, full(1, 4).rows)
    mine.note(again, 0.0)
    mine.note(Span("s", 4, 6, 6, full(4, 6).rows), 0.0)
    told = mine.close()
    assert told is not None and (told.lo, told.hi, told.asof, told.rows) == (1, 6, 6, 5)


@pytest.mark.parametrize(
    "after",
    [collected(4, 6, 30), full(5, 6), Span("s", 4, 6, 20, NO_ROWS, Lens("key = 'a'"))],
    ids=["as of another number", "behind a gap", "through another lens"],
)
def test_what_cannot_be_stated_together_is_two_receipts(after: Span) -> None:
    mine = account()
    mine.note(collected(1, 4, 20), 1.0)
    closed, last = mine.note(after, 2.0), mine.close()
    assert closed is not None and last is not None
    assert (closed.lo, closed.hi, closed.n, last.lo, last.hi, last.n) == (1, 4, 1, after.lo, after.hi, 2)


def test_a_tombstone_and_the_batches_published_behind_it_are_one_receipt() -> None:
    mine = account()
    mine.note(collected(1, 4, 4), 1.0)
    assert mine.note(full(4, 8), 1.0) is None
    told = mine.close()
    assert told is not None and (told.lo, told.hi, told.asof, told.rows) == (1, 8, 4, 4)


def test_what_nobody_takes_is_bounded_and_the_numbers_show_what_is_missing() -> None:
    async def main() -> None:
        sent: list[Receipt] = []

        async def send(batch: tuple[Receipt, ...]) -> None:
            sent.extend(batch)

        ledger = ReceiptLedger(send)
        ledger.open(1, "desk", 7, "s")
        for at in range(receipts.WAITING + 10):
            ledger.note(1, collected(at + 1, at + 2, 10_000_000 + at))
        assert ledger.dropped == 9  # the last one is still open
        await ledger.close()
        assert ledger.kept == len(sent) == receipts.WAITING and ledger.dropped == 10

    run(main())


def test_a_batch_that_is_not_answered_goes_first_next_time() -> None:
    async def main() -> None:
        sent: list[int] = []

        async def send(batch: tuple[Receipt, ...]) -> None:
            sent.append(len(batch))
            if len(sent) == 1:
                raise TimeoutError

        ledger = ReceiptLedger(send)
        ledger.open(1, "desk", 7, "s")
        for at in range(MOST + 5):
            ledger.note(1, collected(at + 1, at + 2, 10_000_000 + at))
        await ledger.close()
        assert sent == [MOST] and ledger.kept == 0
        await ledger.close()
        assert sent == [MOST, MOST, 5] and ledger.kept == MOST + 5

    run(main())


async def told(connection: Any, count: int) -> list[dict[str, Any]]:
    """The first receipts of a region."""
    rows: list[dict[str, Any]] = []
    async with connection.subscribe(receipts_of("r0"), start="earliest", receipts=True) as sub, asyncio.timeout(20.0):
        async for span in sub.spans():
            rows += pa.Table.from_batches([span.rows]).select(NAMES).to_pylist()
            if len(rows) >= count:
                return rows
    raise AssertionError


def test_a_region_keeps_what_its_subscribers_were_handed(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster, "writer") as writer:
            async with dial(cluster, "desk", receipts=True) as desk, dial(cluster, "quiet") as quiet:
                async with (
                    desk.subscribe("s0", start="earliest") as sub,
                    desk.subscribe("prices", where="price > 3", start="earliest", name="named") as filtered,
                    quiet.subscribe("s0", start="earliest") as other,
                ):
                    for at in range(5):
                        await writer.publish("s0", payload=b"%d" % at)
                    await writer.publish("prices", attrs={"price": 4.0})
                    assert [(await sub.next(5.0)).seq for _ in range(5)] == [1, 2, 3, 4, 5]
                    assert (await filtered.next(5.0)).seq == 1
                    assert (await other.next(5.0)).seq == 1
                streams = [each.name for each in await desk.streams()]
                assert receipts_of("r0") not in streams
            rows = await told(writer, 2)
        by = {row["subscriber"]: row for row in rows}
        assert sorted(by) == ["desk", "named"] and len(rows) == 2  # nobody audits the audit
        assert (by["desk"]["followed"], by["desk"]["lo"], by["desk"]["hi"], by["desk"]["rows"]) == ("s0", 1, 6, 5)
        assert by["named"]["lens"] == "price > 3" and by["named"]["rows"] == 1

    run(main())


def test_nobody_publishes_receipts_by_hand(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            with pytest.raises(Exception, match="unknown to its owner"):
                await t.publish(receipts_of("r0"), payload=b"forged")

    run(main())


def test_receipts_that_make_no_sense_are_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            await t.streams()
            head = cluster.machine(0)
            before = head.log.last
            bad = Receipt("x", 1, 1, "s0", -5, 3, 3, "", 3, 0, 0.0)
            assert not bad.sound
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await t._subscribing._send_receipts((bad,))
            assert head.log.last == before and until is not None

    run(main())
