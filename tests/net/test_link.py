"""Connections over loopback: who is let in, who is refused and told why, what is found again, what is dropped."""

from __future__ import annotations

import asyncio
import pathlib
import random
import re
from typing import Any

import msgspec
import pytest

from net.rig import PINGS, UNLUCKY, Ping, Pinger, ping_host, run, until
from tidings.core.errors import BadInput
from tidings.net import frames
from tidings.net.frames import PREFIX, FrameError, Outgoing, frame
from tidings.net.host import HostSettings, MachineFailed, Overloaded
from tidings.net.link import Hello, LinkSettings, Peer, explain, introduce
from tidings.net.names import Address
from tidings.net.shape import DelayLine, ShapedPath, Wan, us
from tidings.protocols.kernel import Command, Received, Send

HELLO = Hello("c", "r0", "tidings", "client")


async def talk(address: Address, *data: bytes, linger: bool = False) -> list[Any]:
    """Send bytes over a bare connection; the headers that come back until it ends (or until the first, with linger)."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        for each in data:
            writer.write(each)
        out: list[Any] = []
        while True:
            try:
                length, head = PREFIX.unpack(await reader.readexactly(8))
                payload = await reader.readexactly(length)
            except (asyncio.IncompleteReadError, ConnectionError):
                return out
            out.append(msgspec.msgpack.decode(payload[:head]))
            if linger:
                return out
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def bytes_of(outgoing: Outgoing) -> bytes:
    return b"".join(outgoing.chunks)


def greeted(**changes: Any) -> bytes:
    return bytes_of(introduce(msgspec.structs.replace(HELLO, **changes)))


@pytest.mark.parametrize("said", [b"", greeted()], ids=["before a hello", "after it"])
def test_a_peer_does_not_invent_counters(said: bytes) -> None:
    async def main() -> None:
        host = ping_host("b", Pinger(), {})
        address = await host.listen()
        host.start()
        for code in ("x1", "x2", "x3", "cluster"):
            await talk(address, said + bytes_of(explain(FrameError(code, "enough"))))
        await until(lambda: not host._listener._connections, "all of them have hung up")
        await host.stop()
        told = {name: count for name, count in host.counters.items() if name.startswith("told_")}
        assert told == {"told_other": 3, "told_cluster": 1}

    run(main())


def test_every_code_of_ours_is_counted_by_its_name() -> None:
    sources = pathlib.Path(frames.__file__).parents[1].rglob("*.py")
    raised = {code for path in sources for code in re.findall(r'FrameError\(\s*"(\w+)"', path.read_text())}
    assert raised and raised <= frames.CODES


# --- refusals ---------------------------------------------------------------------------------------------

BAD = {
    "random": (random.Random(1).randbytes(400), "too_large"),
    "4 GiB": (PREFIX.pack(0xFFFFFFF0, 32) + bytes(64), "too_large"),
    "larger than a hello": (PREFIX.pack(5000, 100) + bytes(64), "too_large"),
    "no header": (PREFIX.pack(16, 0) + bytes(64), "frame"),
    "a message first": (bytes_of(PINGS.encode(Ping(1))), "hello"),
    "a hello without fields": (bytes_of(frame(msgspec.msgpack.encode(["Hello", {}]))), "hello"),
    "another format": (greeted(format=9, oldest=9), "format"),
    "another format of rows": (greeted(rows=99), "format"),
    "another cluster": (greeted(cluster="other"), "cluster"),
    "no name": (greeted(node=""), "name"),
    "its own name": (greeted(node="b", role="node"), "name"),
    "a client under a node's name": (greeted(node="a"), "name"),
    "not authorized": (greeted(token="wrong"), "token"),
    "an unknown message": (greeted() + bytes_of(frame(msgspec.msgpack.encode(["Riddle", {}]))), "unknown_message"),
    "a wrong type": (greeted() + bytes_of(frame(msgspec.msgpack.encode(["Ping", {"number": "x"}]))), "bad_message"),
    "not for clients": (greeted() + bytes_of(frame(msgspec.msgpack.encode(["Pong", {"number": 1}]))), "role"),
    "garbage later": (greeted() + bytes(64), "frame"),
}


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
def test_whoever_breaks_the_rules_is_told_counted_and_disconnected_and_nobody_else_notices(uvloop: bool) -> None:
    async def main() -> None:
        directory: dict[str, Address] = {}
        quiet, pinger = Pinger(), Pinger("b")
        b = ping_host("b", quiet, directory, authorize=lambda hello: "token: unknown" if hello.token else None)
        directory["b"] = await b.listen()
        a = ping_host("a", pinger, directory)
        directory["a"] = await a.listen()
        a.start()
        b.start()
        await until(lambda: pinger.pongs, "pongs")
        link = b.peers["a"]
        for name, (data, code) in BAD.items():
            before = b.counters[f"refused_{code}"]
            came = await talk(directory["b"], data)
            assert came[-1][0] == "Error", name
            assert came[-1][1]["code"] == code, (name, came)
            assert b.counters[f"refused_{code}"] == before + 1, name
        seen = len(pinger.pongs)
        await until(lambda: len(pinger.pongs) > seen, "pongs go on")
        assert b.peers["a"] is link
        assert list(b.peers) == ["a"]
        await asyncio.gather(a.stop(), b.stop())

    run(main(), uvloop=uvloop)


def test_who_says_nothing_is_disconnected_in_time() -> None:
    async def main() -> None:
        b = ping_host("b", Pinger(), {}, settings=HostSettings(links=LinkSettings(hello_seconds=0.05)))
        address = await b.listen()
        b.start()
        came = await talk(address)
        assert came[-1] == ["Error", {"code": "hello", "text": "no hello within 0.05 s"}]
        came = await talk(address, greeted(), linger=True)
        assert came[0][0] == "Hello"
        await b.stop()

    run(main())


def test_too_many_strangers_are_turned_away() -> None:
    async def main() -> None:
        b = ping_host("b", Pinger(), {}, settings=HostSettings(links=LinkSettings(strangers=2)))
        address = await b.listen()
        b.start()
        waiting = [await asyncio.open_connection(*address) for _ in range(2)]
        came = await talk(address)
        assert came[-1][1]["code"] == "full"
        for _, writer in waiting:
            writer.close()
        await b.stop()

    run(main())


def test_a_node_that_connects_anew_takes_the_place_of_its_older_self() -> None:
    async def main() -> None:
        b = ping_host("b", Pinger(), {})
        address = await b.listen()
        b.start()
        older = asyncio.create_task(talk(address, greeted()))
        await until(lambda: "c" in b.peers)
        first = b.peers["c"]
        await talk(address, greeted(), linger=True)
        came = await older
        assert came[-1][1]["code"] == "superseded"
        assert b.peers.get("c") is not first
        await b.stop()

    run(main())


def test_who_looks_for_a_former_inhabitant_does_not_disturb_those_who_mean_the_present_one() -> None:
    """A replica comes back under another name at its old address, and somebody still sends to the name it had."""

    async def main() -> None:
        directory: dict[str, Address] = {}
        quiet = Pinger()
        b = ping_host("b~2", quiet, directory)
        directory["b~2"] = directory["b"] = await b.listen()
        b.start()
        a = ping_host("a", Loud(), directory)
        a.start()
        a.command(Burst(1, "b~2"))
        await until(lambda: quiet.pings == [1])
        peer = b.peers["a"]
        a.command(Burst(1, "b"))
        await until(lambda: a.counters["dials"] >= 4, "it is looked for again and again")
        refused = a.links["b"].refused
        assert refused is not None and refused.code == "name"
        assert b.peers["a"] is peer and quiet.pings == [1]
        await asyncio.gather(a.stop(), b.stop())

    run(main())


def test_a_dialler_that_is_refused_knows_why() -> None:
    async def main() -> None:
        directory: dict[str, Address] = {}
        b = ping_host("b", Pinger(), directory, cluster="other")
        directory["b"] = await b.listen()
        b.start()
        a = ping_host("a", Pinger("b"), directory)
        a.start()
        await until(lambda: a.counters["told_cluster"] >= 2, "it tries again")
        refused = a.links["b"].refused
        assert isinstance(refused, FrameError) and refused.code == "cluster"
        await asyncio.gather(a.stop(), b.stop())

    run(main())


def test_a_directory_that_leads_to_another_node_is_noticed() -> None:
    async def main() -> None:
        directory: dict[str, Address] = {}
        b = ping_host("b", Pinger(), {})
        directory["x"] = await b.listen()
        b.start()
        machine = Pinger("x")
        a = ping_host("a", machine, directory)
        a.start()
        await until(lambda: a.counters["told_name"])
        assert not machine.pongs
        await asyncio.gather(a.stop(), b.stop())

    run(main())


# --- found again --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
def test_a_peer_that_restarts_is_found_again(uvloop: bool) -> None:
    async def main() -> None:
        directory: dict[str, Address] = {"b": ("127.0.0.1", 1)}  # nobody there yet
        pinger = Pinger("b")
        a = ping_host("a", pinger, directory)
        directory["a"] = await a.listen()
        a.start()
        await until(lambda: a.counters["dials_failed"] >= 2, "attempts")
        assert a.counters["dropped_down"] > 0
        for life in range(3):
            b = ping_host("b", Pinger(), directory)
            port = directory["b"][1] if life else 0
            directory["b"] = await b.listen(port=port)
            b.start()
            seen = len(pinger.pongs)
            await until(lambda seen=seen: len(pinger.pongs) > seen + 3, f"pongs in life {life}")
            assert pinger.pongs == sorted(set(pinger.pongs)), "in order, once"
            await b.stop()
        await a.stop()

    run(main(), uvloop=uvloop)


def test_a_client_is_answered_over_the_connection_it_came_by() -> None:
    async def main() -> None:
        directory: dict[str, Address] = {}
        b = ping_host("b", Pinger(), directory)
        directory["b"] = await b.listen()
        b.start()
        pinger = Pinger("b")
        client = ping_host("web-17", pinger, dict(directory), role="client")
        client.start()
        await until(lambda: len(pinger.pongs) > 3)
        assert b.peers["web-17"].role == "client"
        await client.stop()
        await until(lambda: "web-17" not in b.peers)
        await b.stop()

    run(main())


# --- bounds -------------------------------------------------------------------------------------------------


class Burst(Command, frozen=True, gc=False):
    count: int
    to: str


class Loud(Pinger):
    def handle(self, now: float, input: Any) -> Any:
        if isinstance(input, Burst):
            return [Send(input.to, Ping(at)) for at in range(1, input.count + 1)]
        return super().handle(now, input)


def test_what_a_queue_cannot_hold_is_dropped_newest_first_and_counted() -> None:
    async def main() -> None:
        directory: dict[str, Address] = {}
        quiet = Pinger()
        b = ping_host("b", quiet, directory)
        directory["b"] = await b.listen()
        b.start()
        a = ping_host("a", Loud(), directory, settings=HostSettings(links=LinkSettings(queue_frames=100)))
        a.start()
        a.command(Burst(1000, "b"))
        await until(lambda: len(quiet.pings) == 100, "what the queue held")
        assert quiet.pings == list(range(1, 101))
        assert a.counters["dropped_full"] == 900
        a.command(Burst(1000, "b"))  # now it is connected and keeps up
        await until(lambda: len(quiet.pings) == 1100)
        assert a.counters["dropped_full"] == 900
        await asyncio.gather(a.stop(), b.stop())

    run(main())


class FakeConnection:
    """A connection whose socket takes nothing until told."""

    def __init__(self) -> None:
        self.ready = self.can_write = False
        self.open = True
        self.sent: list[Outgoing] = []
        self.backlog = 0

    def send(self, outgoing: Outgoing) -> None:
        self.sent.append(outgoing)


def test_frames_without_rows_are_not_starved_by_rows() -> None:
    async def main() -> None:
        counters: dict[str, float] = {"dropped_full": 0, "dropped_full_bytes": 0, "dropped_down": 0}
        connection: Any = FakeConnection()
        peer = Peer(connection, HELLO, LinkSettings(queue_bytes=1000, queue_frames=50), counters, "r0", None)
        bulk, control = frame(b"rows", (bytes(400),)), frame(b"ack")
        for _ in range(4):
            peer.send(bulk)
        assert counters["dropped_full"] == 2
        peer.send(control)
        assert counters["dropped_full"] == 2
        assert not peer.writable()
        for _ in range(100):
            peer.send(control)
        assert counters["dropped_full"] == 2 + 53
        connection.ready = connection.can_write = True
        peer.resumed()
        await until(lambda: connection.sent == [bulk, bulk, *[control] * 48])
        assert peer.writable()

    run(main())


def test_a_slow_reader_makes_its_peer_unwritable_until_it_reads() -> None:
    async def main() -> None:
        told: list[bool] = []
        directory: dict[str, Address] = {}
        settings = HostSettings(links=LinkSettings(high_water=1 << 16))
        b = ping_host("b", Pinger(), directory, settings=settings, on_writable=lambda peer, yes: told.append(yes))
        address = await b.listen()
        b.start()
        reader, writer = await asyncio.open_connection(*address, limit=1 << 16)
        writer.write(greeted())
        await until(lambda: "c" in b.peers)
        peer = b.peers["c"]
        big = frame(b"rows", (bytes(1 << 20),))
        while peer.writable():
            peer.send(big)
            await asyncio.sleep(0)
        await until(lambda: told == [False])
        assert peer.backlog > 1 << 16
        while not peer.writable():
            await asyncio.wait_for(reader.read(1 << 20), 5)
        await until(lambda: told == [False, True])
        writer.close()
        await b.stop()

    run(main())


def test_clients_are_held_back_when_the_inbox_fills_and_nodes_are_not() -> None:
    async def main() -> None:
        directory: dict[str, Address] = {"n": ("127.0.0.1", 1)}
        quiet = Pinger()
        b = ping_host("b", quiet, directory, settings=HostSettings(inbox=100))
        address = await b.listen()
        b.start()
        await asyncio.gather(
            talk(address, greeted(), linger=True), talk(address, greeted(node="n", role="node"), linger=True)
        )
        flood = b"".join([bytes_of(PINGS.encode(Ping(at))) for at in range(1, 2001)])
        _, client = await asyncio.open_connection(*address)
        client.write(greeted(node="c2") + flood)
        await until(lambda: len(quiet.pings) + b.counters["dropped_inbox"] == 2000, "all were read in the end")
        assert b.counters["clients_held"] > 0
        client.close()
        await b.stop()

    run(main())


def test_a_full_inbox_drops_messages_and_counts_them() -> None:
    async def main() -> None:
        quiet = Pinger()
        b = ping_host("b", quiet, {}, settings=HostSettings(inbox=10))
        b.start()

        class Someone:
            node, role = "n", "node"

        header = PINGS.split(Ping(1))[0]
        for _ in range(25):
            b.peer_frame(Someone(), header, frames.NO_BODY)  # type: ignore[arg-type]
        assert b.counters["dropped_inbox"] == 15
        for _ in range(10):
            b.command(Burst(0, "b"))
        with pytest.raises(Overloaded):
            b.command(Burst(0, "b"))
        await until(lambda: len(quiet.pings) == 10)
        await b.stop()

    run(main())


def test_a_frame_the_other_end_would_refuse_is_not_sent() -> None:
    async def main() -> None:
        directory: dict[str, Address] = {"b": ("127.0.0.1", 1)}
        a = ping_host("a", Loud(), directory, settings=HostSettings(links=LinkSettings(max_frame=16)))
        a.start()
        a.command(Burst(3, "b"))
        await until(lambda: a.counters["dropped_too_large"] == 3)
        await a.stop()

    run(main())


# --- failures -----------------------------------------------------------------------------------------------


def test_a_machine_that_raises_stops_its_host_and_says_on_what() -> None:
    async def main() -> None:
        b = ping_host("b", Pinger(), {})
        b.start()
        waiting = asyncio.create_task(b.request(Burst(1, "b"), lambda item: False))
        await asyncio.sleep(0)
        b._put(Received("a", Ping(UNLUCKY)))
        with pytest.raises(MachineFailed, match=r"planted.*Ping"):
            await b.failed
        with pytest.raises(MachineFailed):
            await waiting
        assert b.queued == 0
        await b.stop()

    run(main())


# --- shaping --------------------------------------------------------------------------------------------------


async def two_regions(wan: Wan) -> tuple[Any, Any, Pinger, Pinger]:
    directory: dict[str, Address] = {}
    pinger, quiet = Pinger("b", 0.005), Pinger()
    a = ping_host("a", pinger, directory, region="r0", wan=wan)
    b = ping_host("b", quiet, directory, region="r1", wan=wan)
    directory["a"], directory["b"] = await a.listen(), await b.listen()
    b.start()
    a.start()
    return a, b, pinger, quiet


def test_frames_take_the_latency_of_their_path_and_keep_their_order() -> None:
    async def main() -> None:
        wan = Wan()
        wan.connect("r0", "r1", ShapedPath(latency=0.05, jitter=0.02), one_way=True)
        wan.connect("r1", "r0", ShapedPath(latency=0.03), one_way=True)
        a, b, pinger, quiet = await two_regions(wan)
        loop = asyncio.get_running_loop()
        await until(lambda: "b" in a.links and a.links["b"].peer)
        await until(lambda: pinger.sent > 0)
        began = loop.time()
        sent = pinger.sent
        await until(lambda: pinger.pongs and pinger.pongs[-1] > sent, "a ping sent after that has come back")
        assert loop.time() - began >= 0.08
        await until(lambda: len(pinger.pongs) > 50)
        assert quiet.pings == sorted(quiet.pings)
        await asyncio.gather(a.stop(), b.stop())

    run(main())


def test_a_cut_destroys_what_is_on_the_way_and_heals() -> None:
    async def main() -> None:
        wan = Wan()
        wan.connect("r0", "r1", ShapedPath(latency=0.02))
        a, b, pinger, quiet = await two_regions(wan)
        await until(lambda: len(pinger.pongs) > 5)
        link = a.links["b"].peer
        wan.cut("r0", "r1")
        assert wan.show()["r0-r1"]["cut"]
        seen, sent = len(quiet.pings), pinger.sent
        await until(lambda: pinger.sent > sent + 20)
        assert len(quiet.pings) <= seen + 1  # what had left the line just before
        lost = a.counters["shape_lost"]
        assert lost >= 20
        wan.heal("r0", "r1")
        await until(lambda: len(quiet.pings) > seen + 5, "it flows again")
        assert a.links["b"].peer is link, "the connection stayed up"
        await asyncio.gather(a.stop(), b.stop())

    run(main())


def test_loss_takes_about_its_share_and_never_a_hello() -> None:
    async def main() -> None:
        wan = Wan()
        wan.impair("r0", "r1", one_way=True, loss=0.5)
        a, b, pinger, _ = await two_regions(wan)
        pinger.period = 0.0005
        await until(lambda: pinger.sent > 400)
        assert 0.3 < a.counters["shape_lost"] / pinger.sent < 0.7
        wan.impair("r0", "r1", one_way=True, loss=1)
        c = ping_host("c", Pinger(), {"b": a.directory["b"]}, region="r0", wan=wan)
        c.start()
        c._send("b", Ping(1), None)
        await until(lambda: "c" in b.peers, "its hello passed")
        await asyncio.gather(a.stop(), b.stop(), c.stop())

    run(main())


def test_bandwidth_spaces_frames_out() -> None:
    async def main() -> None:
        counters: dict[str, float] = {"shape_full": 0, "shape_lost": 0}
        wan = Wan()
        wan.connect("a", "b", ShapedPath(bandwidth=8e6))  # a byte per microsecond
        came: list[float] = []
        loop = asyncio.get_running_loop()
        line = DelayLine(wan.way("a", "b"), lambda outgoing: came.append(loop.time()), counters, limit=50_000)
        began = loop.time()
        for _ in range(8):
            line.send(frame(b"h" * 9_992))
        assert counters["shape_full"] == 3
        await until(lambda: len(came) == 5)
        assert came[-1] - began >= 0.049  # the clock of a loop has a resolution of a millisecond
        await until(lambda: came[-1] - came[0] >= 0.03)

    run(main())


def test_the_us_preset_has_two_coasts() -> None:
    wan = us(["r0", "r1", "r2"])
    latencies = {name: way["latency"] for name, way in wan.show().items() if name in ("r0-r1", "r0-r2", "r1-r2")}
    assert latencies == {"r0-r1": 0.035, "r0-r2": 0.035, "r1-r2": 0.010}
    with pytest.raises(BadInput):
        us(["a", "b", "c", "d"])
    with pytest.raises(BadInput):
        wan.impair("r0", "r1", loss=1.5)
    with pytest.raises(BadInput):
        wan.impair("r0", "r1", colour=1)
