"""Scripted and conflicting clients find nothing wrong in a calm world, and notice when they are fed wrongly."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tidings.campaign.sprinkler import campaign, scripted_client
from tidings.campaign.sprinkler.fault_plan import FaultPlan
from tidings.check.tables import DELIVERED, PUBLISHED, Trace, table
from tidings.client.commands import Ask, Open, Submit
from tidings.client.machine import ClientMachine, MachineSettings
from tidings.core.hashing import row_hashes
from tidings.core.rows import CountedRows
from tidings.core.span import Span
from tidings.protocols.brokers.messages import EARLIEST, Consumed, Feed
from tidings.protocols.kernel import Command, Effects, Expired, Message, Received, Send
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.catalog import Because, Describe, Description, StreamDef, Why
from tidings.protocols.services.publishing import OpenSession, Publish, Published, SessionOpened


def test_desks_are_content_with_a_calm_world() -> None:
    seed = next(seed for seed in range(100) if FaultPlan(seed).mood == "calm" and FaultPlan(seed).scripted_clients)
    outcome = campaign.run_seed(seed)
    assert outcome["violations"] == []
    assert outcome["reports"]["subscriber_moved"] and outcome["reports"]["subscriber_given_up"]


def test_claimants_are_content_with_a_calm_world_of_three_regions_in_which_one_name_is_given_out_twice() -> None:
    plans = [
        plan for plan in map(FaultPlan, range(200)) if plan.mood == "calm" and plan.claims and not plan.scripted_clients
    ]
    outcome = campaign.run_seed(next(plan.seed for plan in plans if len(plan.scenario.regions) == 3))
    assert outcome["violations"] == []
    assert outcome["reports"]["stream_conflict"] and outcome["reports"]["subscriber_given_up"]


def test_who_is_slow_is_so_only_until_all_is_mended() -> None:
    """Seed 632: 128 numbers a second at most, of 159, and an outage before: the end was two seconds too far."""
    slow = scripted_client.ScriptedClient(
        ClientMachine("d", "d", ("p",), MachineSettings(subscriptions=scripted_client.FEEDS), random.Random(1)),
        [],
        frozenset({2}),
        17.0,
    )
    nonce = next(
        effect.message.nonce
        for effect in slow.start(0.0)
        if isinstance(effect, Send) and isinstance(effect.message, Describe)
    )
    stream, chain = StreamDef("s", "r0"), ChainConfig("r0", 1, ("p",))
    slow.handle(0.0, Received("p", Description(nonce, "r0", (chain,), (stream,), {})))
    slow.handle(0.0, Open(2, "s", EARLIEST, "", None, 1))
    taken: list[float] = []
    for step in range(1, 81):  # whatever is taken, there is more
        now = step * scripted_client.TICK
        fed = Span("s", step, step + 1, step + 1, CountedRows(step, 1, 10))
        slow.handle(now, Received("p", Feed(2, step, (fed,), step + 1)))
        effects = slow.handle(now, Expired(scripted_client.ScriptTick()))
        if Send("p", Consumed(2, step + 1)) in effects:
            taken.append(now)
    assert taken == [2.0 * turn for turn in range(1, 9)] + [17.0 + scripted_client.TICK * tick for tick in range(13)]


def answer(message: Message) -> Message:
    """What a healthy head, alone in its region, says."""
    match message:
        case Describe(nonce):
            return Description(nonce, "r0", (ChainConfig("r0", 1, ("p",)),), (StreamDef("s", "r0"),), {})
        case OpenSession(_, nonce):
            return SessionOpened(nonce, 1)
        case Publish(_, _, session, first, rows):
            return Published(session, first, first, first + rows.count)
    assert isinstance(message, Why)
    return Because(message.stream, message.seq, "row")


def test_a_desk_whose_chain_was_away_does_what_is_due_one_by_one_as_fast_as_it_is_answered() -> None:
    rows = CountedRows(1, 2, 10)
    todo: list[tuple[float, Command]] = [(float(tag > 0), Submit("r0", "s", rows, tag)) for tag in range(40)]
    todo += [(1.0, Ask(seq, Why("s", seq))) for seq in range(1, 31)] + [(99.0, Submit("r0", "s", rows, 99))]
    late = scripted_client.ScriptedClient(
        ClientMachine("d", "d", ("p",), MachineSettings(), random.Random(1)), todo, frozenset(), 0.0
    )

    def talk(now: float, effects: Effects) -> None:
        """Until nobody has anything to say; no tick comes between."""
        asked = [effect.message for effect in effects if type(effect) is Send]
        while asked:
            assert len({type(message) for message in asked}) == len(asked), "one of a kind at a time"
            told = [Received("p", answer(message)) for message in asked]
            asked = [effect.message for each in told for effect in late.handle(now, each) if type(effect) is Send]

    talk(0.0, late.start(0.0))
    talk(0.5, late.handle(0.5, Expired(scripted_client.ScriptTick())))
    assert late.acked == {0}
    talk(20.0, late.handle(20.0, Expired(scripted_client.ScriptTick())))
    assert late.acked == set(range(40)) and set(late.answers) == set(range(1, 31))
    assert late.todo == todo[-1:], "what is not due waits"


@pytest.mark.parametrize(
    ("rows", "total", "wrong"), [((61, 62), 0, 1), ((58, 59), 0, 0), ((58,), 0, 1), ((58, 60), 0, 1), ((58, 59), 1, 1)]
)
def test_a_receipt_through_a_filter_holds_exactly_the_rows_that_pass(
    rows: tuple[int, ...], total: int, wrong: int
) -> None:
    seqs = pa.array(range(1, 100))
    events = {"stream": ["s"] * 99, "seq": seqs, "count": [1] * 99, "kind": [0] * 99, "hash": [7] * 99}
    sums = int(row_hashes(pa.array(rows).to_numpy(), pa.array([7] * len(rows), pa.uint64()).to_numpy()).sum()) + total
    receipt = {"subscriber": ["d#2"], "incarnation": [1], "n": [1], "stream": ["s"], "lo": [58], "hi": [64]}
    receipt |= {
        "asof": [64],
        "lens": [scripted_client.WHERE],
        "rows": [len(rows)],
        "hash_sum": [sums % 2**64],
        "time": [1.0],
    }
    trace = Trace(table(PUBLISHED, events), table(DELIVERED, receipt))
    assert min(scripted_client.misfiltered(trace), 1) == wrong
