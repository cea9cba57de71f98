"""A few scripted runs whose messages are written down one by one, to be read beside the paper.

Each run must repeat its trace, tests/golden/<name>.txt, to the letter. After a change that is meant to alter one:

    TIDINGS_GOLDEN=write pytest tests/golden

writes them anew; read the difference before keeping it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from golden.scribe import Scribe
from tidings.protocols.fabrics.family import choose
from tidings.protocols.kernel import Message
from tidings.protocols.messages import Know, Offer, Want
from tidings.protocols.regions.interregion import Advertise, Subscribe, Unsubscribe
from tidings.protocols.replication.chain import Append, ChainAck, Fetch, Refuse
from tidings.protocols.replication.configuration import Current, Promote
from tidings.protocols.services.publishing import NotHead, OpenSession, Publish, Published, Rejected, SessionOpened
from tidings.sim import scenario as plans
from tidings.sim.build import Deployment
from tidings.sim.scenario import Scenario

CHAIN = (Append, ChainAck, Fetch, Refuse, Current, Promote)
PUBLISHING = (OpenSession, SessionOpened, Publish, Published, NotHead, Rejected)
REGIONS = (Advertise, Subscribe, Unsubscribe, Know)
FABRIC = (Offer, Want, Know)
HERE = Path(__file__).parent


def script(
    replicas: dict[str, int], seconds: float, rate: float, *, clients: int = 0, stop: float = 99.0, **protocol: object
) -> Scenario:
    """Regions with chains of so many replicas; a client of the first one publishes single events to its stream s."""
    names = list(replicas)
    calm = {"shuffle": 0.5, "proxy_shuffle": 0.5, "gossip": 0.5, "fanout": 2, "proxy_fanout": 2, **protocol}
    return Scenario(
        scenario=plans.Run(name="golden", seconds=seconds),
        regions=tuple(plans.RegionTable(name, replicas=replicas[name], clients=clients) for name in names),
        links=tuple(plans.LinkTable(a, b, 0.02) for at, a in enumerate(names) for b in names[at + 1 :]),
        streams=(plans.Stream("s", names[0], rows="counted"),),
        publishers=(plans.PublisherTable(name="w", region=names[0], stream="s", rate=rate, start=0.5, stop=stop),),
        fabric=choose("pull", **calm),
    )


class Run:
    """A scenario in a world, a scribe beside it, and a script of things to do."""

    def __init__(
        self,
        scenario: Scenario,
        kinds: tuple[type[Message], ...],
        *,
        begin: float = 0.0,
        passes: Callable[[str, str], bool] = lambda src, dst: True,
    ) -> None:
        self.seconds = scenario.scenario.seconds
        self.deployment = Deployment(scenario, 1)
        self.world = self.deployment.world
        self.scribe = Scribe(kinds, passes, begin)
        self.world.observers.append(self.scribe)

    def at(self, time: float, text: str, action: Callable[[], object]) -> None:
        """Do something at a time and write it down."""

        def act() -> None:
            self.scribe.note(time, text)
            action()

        self.world.at(time, act)

    def trace(self) -> str:
        self.world.start()
        self.world.run(self.seconds)
        assert not self.world.failures, self.world.failures[0].traceback
        return self.scribe.text


def chain_head_fails_over() -> str:
    """The head crashes; the next replica becomes the head and takes the publisher's events (A1.41)."""
    run = Run(script({"r": 3}, 3.2, 2.0), (*CHAIN, *PUBLISHING), begin=1.0)
    run.at(1.4, "r/p0, the head, crashes", lambda: run.world.crash("r/p0"))
    return run.trace()


def tail_passes_the_token() -> str:
    """A new replica catches up behind the tail, gets the token, and takes over the tail's connections (A1.42)."""
    plan = script({"r": 2, "q": 1}, 3.1, 4.0)
    run = Run(plan, (*CHAIN, *REGIONS), begin=1.7, passes=lambda src, dst: dst != "r/w0")
    run.at(1.6, "r/p2, an empty replica, starts", lambda: run.deployment.add_replica("r"))
    return run.trace()


def publisher_retries_across_a_fail_over() -> str:
    """The answer to a batch is lost and the head dies: the next head answers the retry with the same numbers (A1.1)."""
    run = Run(script({"r": 2}, 3.2, 2.0, stop=1.5), (*PUBLISHING, Append, ChainAck, Current), begin=1.0)
    deaf = partial(run.world.partition, ["r/p0"], ["r/w0"], one_way=True)
    run.at(1.0, "what r/p0 sends to r/w0 is lost", deaf)
    run.at(1.4, "r/p0, the head, crashes", lambda: run.world.crash("r/p0"))
    return run.trace()


def link_is_cut_and_events_go_round() -> str:
    """Figure 2: Z takes Y's stream from Y; their link is cut; X's next advertisement turns Z to X (A1.23)."""
    run = Run(script({"Y": 1, "X": 1, "Z": 1}, 4.9, 1.5), REGIONS, begin=1.0, passes=lambda src, dst: dst != "Y/w0")
    run.at(2.2, "the link between Y and Z is cut", lambda: run.world.cut("Y", "Z"))
    run.at(4.2, "the link between Y and Z works again", lambda: run.world.heal("Y", "Z"))
    return run.trace()


def client_falls_back_to_the_proxy() -> str:
    """A client that was cut off asks a peer, which has discarded the older events, and the proxy for those (A1.34)."""
    plan = script({"r": 1}, 2.8, 4.0, stop=2.9, clients=1, recv_rows=3)
    run = Run(plan, FABRIC, begin=1.0, passes=lambda src, dst: "r/c0" in (src, dst))
    for other, until in (("r/w0", 2.4), ("r/p0", 2.51)):
        blocks: list[int] = []
        lose = partial(_lose, run, other, blocks)
        run.at(1.1, f"r/c0 is cut off from {other}", lose)
        run.at(until, f"r/c0 hears {other} again", partial(run.world.rejoin, blocks))
    return run.trace()


def _lose(run: Run, other: str, blocks: list[int]) -> None:
    blocks.extend(run.world.partition(["r/c0"], [other]))


TRACES = (
    chain_head_fails_over,
    tail_passes_the_token,
    publisher_retries_across_a_fail_over,
    link_is_cut_and_events_go_round,
    client_falls_back_to_the_proxy,
)


@pytest.mark.parametrize("make", TRACES, ids=lambda make: make.__name__)
def test_a_scripted_run_repeats_its_trace(make: Callable[[], str]) -> None:
    assert make.__doc__ is not None
    found = f"# {make.__doc__}\n\n{make()}"
    path = HERE / f"{make.__name__.replace('_', '-')}.txt"
    if os.environ.get("TIDINGS_GOLDEN") == "write":
        path.write_text(found)
    assert found.splitlines() == path.read_text().splitlines()
