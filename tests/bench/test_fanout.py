"""The benchmark of an edge with many subscribers, with tiny sizes: that it runs, what it reports, and its limits."""

from __future__ import annotations

import resource

import pyarrow as pa
import pytest

from tidings.bench import fanout
from tidings.bench.fanout import FanoutScale, need_descriptors
from tidings.bench.fanout_worker import EACH, FanoutJob, events_of, expected, where_of
from tidings.core.errors import BadInput
from tidings.core.filters import parse, parse_attributes

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # uvloop's, of pipes to processes that have ended


def test_every_subscriber_has_its_own_filter_which_passes_two_events_a_second() -> None:
    job = FanoutJob(first=20, count=40, total=100, rate=200.0, warm=5.0, seconds=45.0, seed=4)
    topics, prices = events_of(job)
    table = pa.table({"topic": topics, "price": prices})
    declared = parse_attributes("topic bigint, price double")
    wheres = [where_of(job, index) for index in range(20, 60)]
    assert len(set(wheres)) == 40
    passed = [int(parse(where, declared).mask(table).sum()) for where in wheres]
    assert passed == expected(job)
    assert 0.9 * EACH < sum(passed) / 40 / 50.0 < 1.1 * EACH


def test_more_connections_than_descriptors_or_than_an_edge_accepts_are_refused_with_what_would_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda what: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda what, pair: limits.append(pair))
    need_descriptors(100)
    assert len(limits) == 1
    need_descriptors(3000)
    assert limits[-1] == (3256, 4096)
    with pytest.raises(
        BadInput, match=r"^--connections 16000: the edge needs 16256 .* may have 4096: .*--connections 3840$"
    ):
        need_descriptors(16_000)
    with pytest.raises(BadInput, match="an edge accepts 20000, give 19744 or less"):
        need_descriptors(19_900)


@pytest.mark.check
def test_every_subscriber_gets_what_its_filter_passes_and_the_edge_is_compared_with_bare_sockets() -> None:
    steps: list[tuple[int, int]] = []
    scale = FanoutScale(connections=(30,), seconds=1.5, warm=0.5, rate=200.0)
    result = fanout.run(1, lambda done, total, what: steps.append((done, total)), scale)
    edge, bare = result["runs"]
    assert (edge["name"], bare["name"], edge["subscriptions"]) == ("edge-30", "bare-30", 30)
    for each in (edge, bare):
        assert each["events_per_s"] > 0 and each["others_cpus"] >= 0
        assert 0 < each["latency_us"]["p50"] <= each["latency_us"]["p99"]
        assert each["cpus"] == pytest.approx(sum(each["cpu_parts"].values()), abs=0.002)
    assert edge["cpus"] > 0 and edge["replica_cpus"] >= 0
    assert set(result["ratio"]) <= {"edge-30/bare-30 cpus"}
    assert steps == [(1, 1)]
