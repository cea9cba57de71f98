"""What a host tells its machine of connections: a node that is gone, and whoever lives at a seed."""

from __future__ import annotations

import pytest

from net.rig import Ping, Pinger, ping_host, run, until
from tidings.net.host import HostSettings
from tidings.net.link import LinkSettings
from tidings.net.names import make_id
from tidings.protocols.brokers.subscriber import Lost
from tidings.protocols.kernel import Effects, Input, Send


class Listener(Pinger):
    """A pinger that notes who was lost."""

    def __init__(self, peer: str | None = None, period: float = 0.01) -> None:
        super().__init__(peer, period)
        self.lost: list[str] = []

    def handle(self, now: float, input: Input) -> Effects:
        if isinstance(input, Lost):
            self.lost.append(input.node)
            return []
        return super().handle(now, input)


def test_a_machine_is_told_of_a_node_that_is_gone_and_of_one_that_is_not_to_be_reached() -> None:
    async def main() -> None:
        directory: dict[str, tuple[str, int]] = {}
        server = ping_host("b", Pinger(), directory)
        directory["b"] = await server.listen()
        server.start()
        machine = Listener("b")
        client = ping_host("a", machine, directory, on_lost=Lost)
        client.start()
        await until(lambda: machine.pongs, "it is answered")
        assert machine.lost == []
        await server.stop()
        await until(lambda: len(machine.lost) >= 3, "the end, and attempts that failed")
        assert set(machine.lost) == {"b"}
        await client.stop()

    run(main())


def test_whoever_lives_at_a_seed_is_known_by_name_from_then_on() -> None:
    async def main() -> None:
        directory: dict[str, tuple[str, int]] = {}
        server = ping_host("b", Pinger(), directory)
        host, port = await server.listen()
        seed = make_id("", host, port)
        directory |= {"b": (host, port), seed: (host, port)}
        server.start()
        machine = Listener()
        client = ping_host("a", machine, directory, on_lost=Lost)
        client.start()
        client._carry([Send(seed, Ping(1))])
        await until(lambda: machine.pongs == [1], "the seed answers")
        assert list(client.links) == ["b"]
        client._carry([Send("b", Ping(2))])
        await until(lambda: machine.pongs == [1, 2], "the same connection")
        assert server.counters["frames_in"] and len(server.peers) == 1
        client._carry([Send(seed, Ping(3))])
        await until(lambda: 3 in machine.pongs, "asked anew")
        assert list(client.links) == ["b"] and machine.lost == [], "the newer link stands for it; nobody is lost"
        await client.stop()
        await server.stop()

    run(main())


def test_a_node_that_is_gone_and_not_asked_for_is_forgotten_until_somebody_asks_again() -> None:
    async def main() -> None:
        directory: dict[str, tuple[str, int]] = {}
        server = ping_host("b", Pinger(), directory)
        directory["b"] = await server.listen()
        server.start()
        machine = Listener()
        links = LinkSettings(backoff=0.01, backoff_max=0.02, forsaken=0.1)
        client = ping_host("a", machine, directory, settings=HostSettings(links=links))
        client.start()
        client._carry([Send("b", Ping(1))])
        await until(lambda: machine.pongs == [1], "it is answered")
        await server.stop()
        await until(lambda: not client.links, "nobody is there, and nobody asks")
        again = ping_host("b", Pinger(), directory)
        directory["b"] = await again.listen()
        again.start()
        client._carry([Send("b", Ping(2))])
        await until(lambda: machine.pongs == [1, 2], "it is dialled anew")
        await client.stop()
        await again.stop()

    run(main())


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("name", ["a\0b", "a..b", "\ud800", "a" * 70 + ".b"], ids=ascii)
def test_a_node_whose_address_is_no_name_is_not_to_be_reached_like_any_other(name: str, uvloop: bool) -> None:
    async def main() -> None:
        machine = Listener()
        links = LinkSettings(backoff=0.001, backoff_max=0.002, forsaken=0.02)
        client = ping_host("a", machine, {"b": (name, 1)}, settings=HostSettings(links=links), on_lost=Lost)
        client.start()
        client._carry([Send("b", Ping(1))])
        await until(lambda: not client.links, "nobody is there, and nobody asks")
        assert machine.lost[:2] == ["b", "b"]
        assert client.counters["dials_failed"] == client.counters["dials"] > 1
        await client.stop()

    run(main(), uvloop=uvloop)


def test_there_are_no_more_links_than_the_bound() -> None:
    async def main() -> None:
        directory = {name: ("127.0.0.1", 1) for name in ("b", "c", "d")}
        client = ping_host("a", Listener(), directory, settings=HostSettings(links=LinkSettings(peers=2)))
        client.start()
        client._carry([Send(node, Ping(1)) for node in directory])
        assert len(client.links) == 2 and client.counters["dropped_links"] == 1
        await client.stop()

    run(main())
