"""What a client notices when replicas stop: nothing but a pause."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from client.rig import Town, dial, run, take, town, until
from tidings import errors


def test_events_are_published_exactly_once_across_a_head_that_stops(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            town(tmp_path) as cluster,
            dial(cluster, "w") as t,
            dial(cluster) as reader,
            reader.subscribe("s0", start="earliest") as sub,
        ):
            sent: list[bytes] = []
            for at in range(3000):
                sent.append(b"%d" % at)
                t.post("s0", payload=sent[-1])
                if at % 50 == 0:
                    await asyncio.sleep(0.001)
                if at == 1500:
                    await cluster.kill(cluster.replica(0))
            acks = await t.flush()
            assert sum(ack.hi - ack.lo for ack in acks) == 3000
            got = await take(sub, 3000)
            assert [event.payload for event in got] == sent
            assert [event.seq for event in got] == list(range(1, 3001))
            assert (await t.publish("s0", payload=b"last")).seq == 3001
            await until(lambda: t._session.machine.memberships["r0"].epoch > 1, "the new chain is known")

    run(main())


def test_a_subscriber_whose_replica_is_gone_moves_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            town(tmp_path) as cluster,
            dial(cluster, "w") as t,
            t.subscribe("s0", start="earliest") as sub,
        ):
            await t.publish("s0", payload=b"1")
            await sub.next(5)
            (subscriber,) = t._session.machine.subscribers.values()
            source = subscriber._source()
            await cluster.kill(source)
            await until(lambda: subscriber._source() != source, "it has moved", 1.0)
            await t.publish("s0", payload=b"2")
            assert (await sub.next(15)).payload == b"2"

    run(main())


def test_a_lonely_replica_that_restarts_is_found_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            town(tmp_path, replicas=1) as cluster,
            dial(cluster, "w") as t,
            t.subscribe("s0", start="earliest") as sub,
        ):
            await t.publish("s0", payload=b"1")
            await cluster.kill(cluster.replica(0))
            t.post("s0", payload=b"2")
            await asyncio.sleep(0.2)
            await cluster.boot(cluster.replica(0))
            await t.flush()
            await t.publish("s0", payload=b"3")
            assert [event.payload for event in await take(sub, 3)] == [b"1", b"2", b"3"]

    run(main())


def test_a_close_that_finds_nobody_says_what_is_not_durable(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = Town(tmp_path, replicas=1)
        await cluster.start()
        t = dial(cluster, timeout=0.5)
        await t.open()
        await t.publish("s0", payload=b"1")
        await cluster.kill(cluster.replica(0))
        t.post("s0", key=b"k", payload=b"2")
        with pytest.raises(errors.PublishFailed, match="may or may not be published") as failed:
            await t.close()
        (lost,) = failed.value.failed
        assert (lost.stream, lost.keys, lost.payloads, lost.in_doubt) == ("s0", [b"k"], [b"2"], True)
        await cluster.stop()

    run(main())


def test_a_durable_subscription_resumes_behind_what_was_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            for at in range(10):
                t.post("s0", payload=b"%d" % at)
            await t.flush()
            async with t.subscribe("s0", start="earliest", name="desk-7") as sub:
                assert [e.seq for e in await take(sub, 3)] == [1, 2, 3]  # the third is not acknowledged
            async with dial(cluster) as other, other.subscribe("s0", start="earliest", name="desk-7") as sub:
                assert [e.seq for e in await take(sub, 4)] == [3, 4, 5, 6]
                await sub.ack()
            await cluster.kill(cluster.replica(0))
            async with dial(cluster) as other, other.subscribe("s0", start="earliest", name="desk-7") as sub:
                assert [e.seq for e in await take(sub, 4)] == [7, 8, 9, 10]
                await sub.ack()
                with pytest.raises(TimeoutError):
                    await sub.next(0.05)

    run(main())


def test_a_newer_holder_of_a_name_supersedes_the_older(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t, dial(cluster) as other:
            await t.publish("s0", payload=b"1")
            async with t.subscribe("s0", start="earliest", name="desk") as old:
                assert (await old.next(5)).seq == 1
                async with other.subscribe("s0", start="earliest", name="desk") as new:
                    assert (await new.next(5)).seq == 1
                    with pytest.raises(errors.Superseded, match="'desk' is held by a newer subscriber"):
                        await old.ack()
                    with pytest.raises(errors.Superseded):
                        await old.next(5)
                    await new.ack()

    run(main())


def test_a_slow_subscriber_costs_the_replica_no_memory_and_the_others_no_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            town(tmp_path, replicas=1) as cluster,
            dial(cluster) as t,
            dial(cluster) as sloth,
            t.subscribe("keyed", start="earliest") as quick,
            sloth.subscribe("keyed", start="earliest") as slow,
        ):
            payload = bytes(1000)
            total, got = 0, 0
            for _ in range(60):
                for at in range(1000):
                    t.post("keyed", key=b"%d" % (at % 100), payload=payload)
                await t.flush()
                total += 1000
                while got < total:
                    got = (await quick.events(10))[-1].seq
            replica = cluster.hosts[cluster.replica(0)]
            positions = replica.machine.subscriptions.positions
            window = replica.machine.settings.subscriptions
            behind = [p for p in positions.values() if p.said < total]
            assert len(behind) == 1, "the slow one is not fed beyond its window"
            unacked = behind[0].unacked
            assert unacked.bytes <= window.window_bytes + (20 << 20) and len(unacked) <= window.window
            assert sum(peer.backlog for peer in replica.peers.values()) <= 2 * window.window_bytes
            last, seen = 0, 0
            while last < total:
                event = await slow.next(10)
                assert event.seq > last
                last, seen = event.seq, seen + 1
            assert seen < total // 2, "it has caught up over what collection has left"

    run(main())
