"""A thousand price alerts and one tape over three exchanges, each in a region of its own.

    tidings up --regions 3 --edges 1 --detach
    python examples/stock_alerts.py

Every alert is a subscription with a filter. The tape is one subscription to all exchanges, in one order for everybody:
whoever opens it anywhere sees the same sequence. The program publishes quotes, works out by itself what must arrive,
and says whether it did.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pyarrow as pa

import tidings

EXCHANGES = {"nyse": "r0", "lse": "r1", "tse": "r2"}  # and the regions that own them
ATTRIBUTES = "symbol string, price double"
SYMBOLS = [f"S{at:03d}" for at in range(200)]
ALERTS, QUOTES, BATCH = 1_000, 3_000, 50
HIGH = 95.0  # the tape shows quotes from here on


async def main(url: str | None = None) -> None:
    """Everything, against the cluster of a URL (else that of `TIDINGS_URL` or this directory)."""
    rng = random.Random(1)
    alerts = [(rng.choice(SYMBOLS), round(rng.uniform(50.0, 99.0), 2)) for _ in range(ALERTS)]
    quotes = {name: [(rng.choice(SYMBOLS), rng.uniform(0.0, 100.0)) for _ in range(QUOTES // 3)] for name in EXCHANGES}
    async with tidings.connect(url) as here, tidings.connect(url) as there, AsyncExitStack() as open_:
        for name, region in EXCHANGES.items():
            if name not in {stream.name for stream in await here.streams()}:
                await here.create_stream(name, region=region, attrs=ATTRIBUTES)
        fired: Counter[int] = Counter()
        watching = []
        for at, (symbol, limit) in enumerate(alerts):
            where = f"symbol = '{symbol}' AND price > {limit}"
            alert = await open_.enter_async_context(here.subscribe(*EXCHANGES, where=where))
            watching.append(asyncio.create_task(count(alert, at, fired)))
        tapes = []
        for connection in (here, there):
            tape = connection.subscribe(*EXCHANGES, where=f"price >= {HIGH}", order="total")
            tapes.append(await open_.enter_async_context(tape))

        await asyncio.gather(*[publish(there, name, quotes[name]) for name in EXCHANGES])
        every = [quote for each in quotes.values() for quote in each]
        shown = sum(price >= HIGH for _, price in every)
        sequences = [[await anext_of(tape) for _ in range(shown)] for tape in tapes]
        due = Counter(
            {at: sum(s == symbol and p > limit for s, p in every) for at, (symbol, limit) in enumerate(alerts)}
        )
        for _ in range(100):
            if fired.total() >= due.total():
                break
            await asyncio.sleep(0.1)
        for task in watching:
            task.cancel()
    right = +due == +fired
    print(f"{QUOTES} quotes, {ALERTS} alerts: {fired.total()} fired, {'each once' if right else 'NOT as they should'}")
    same = sequences[0] == sequences[1] == sorted(sequences[0])
    print(f"tape: {shown} quotes from {len(EXCHANGES)} regions, {'one order' if same else 'TWO orders'} in both places")
    if not (right and same):
        sys.exit(1)


async def count(alert: Any, at: int, fired: Counter[int]) -> None:
    """Count how often an alert fires."""
    async for _ in alert:
        fired[at] += 1


async def anext_of(tape: Any) -> tuple[int, int, str]:
    """The next event of a tape: its place in the order."""
    event = await tape.next(timeout=30.0)
    return event.tick, event.seq, event.stream


async def publish(connection: tidings.Connection, exchange: str, quotes: list[tuple[str, float]]) -> None:
    """Publish quotes in batches."""
    for at in range(0, len(quotes), BATCH):
        symbols, prices = zip(*quotes[at : at + BATCH], strict=True)
        await connection.publish_table(exchange, pa.table({"symbol": symbols, "price": prices}))
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
