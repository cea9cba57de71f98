"""The source without Spark around it: options, offsets, planning, and what a task reads."""

from __future__ import annotations

import logging
import time
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark.rig import Cluster, fresh, options, table, until_forgotten
from tidings.client.errors import AsofGone, BadInput, LeaseExpired, UnknownStream
from tidings.client.events import events_of
from tidings.core.rows import ArrowRows, Origin, data_rows
from tidings.core.span import Span
from tidings.protocols.services.leases import LeaseState
from tidings.server.cluster_queries import ClusterTarget, declare_lost
from tidings.spark import source
from tidings.spark.columns import FIXED, SparkColumns
from tidings.spark.options import BATCH_SECONDS, LEASE_SECONDS, ReadOptions
from tidings.spark.source import BatchReader, DataLoss, Range, StreamReader, forgotten, plan, schema_of, shares

GIVEN = {"servers": "127.0.0.1:7400", "subscribe": "prices"}


def test_options_as_they_are_given() -> None:
    found = ReadOptions.parse(
        GIVEN | {"STARTINGOFFSETS": '{"prices": 17}', "failondataloss": "false", "minPartitions": "3", "filter": "a"}
    )
    assert found.servers == "tidings://127.0.0.1:7400" and found.subscribe == ("prices",)
    assert found.starting == {"prices": 17} and not found.fail_on_data_loss and found.min_partitions == 3
    assert ReadOptions.parse(GIVEN | {"subscribe": " a, b,a"}).subscribe == ("a", "b")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "x"}, "did you mean 'servers'|there are"),
        ({"subscribePattern": "a"}, "one of the options 'subscribe'"),
        ({"subscribe": ","}, "names no stream"),
        ({"servers": ""}, "'servers' is missing"),
        ({"servers": "host:port"}, "host:port"),
        ({"startingOffsets": "17"}, "earliest.*JSON"),
        ({"startingOffsets": '{"prices": 0}'}, "numbers from 1 on"),
        ({"startingOffsets": '{"prices": true}'}, "numbers from 1 on"),
        ({"endingOffsets": "earliest"}, "does not end at 'earliest'"),
        ({"maxOffsetsPerTrigger": "0"}, "a whole number from 1 on"),
        ({"minPartitions": "many"}, "a whole number from 1 on"),
        ({"failOnDataLoss": "yes"}, "'true' or 'false'"),
        ({"leaseSeconds": "-1"}, "a number of seconds"),
        ({"timeoutSeconds": "nan"}, "a number of seconds"),
        ({"withTick": "1"}, "'true' or 'false'"),
        ({"withTick": "true", "archive": "{}"}, "does not go with 'archive'"),
    ],
)
def test_an_option_that_makes_no_sense_says_so(wrong: dict[str, str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        ReadOptions.parse(GIVEN | wrong)


@given(st.floats(0, 4e9))
def test_the_time_of_publishing_is_what_a_subscriber_is_told(at: float) -> None:
    rows = ArrowRows(None, data_rows(7, [b"k"], [b"x"]).batch, (Origin(7, 8, "p", at=at, region="r0"),), 7)
    [event] = events_of(Span("s", 7, 8, 8, rows))
    told = SparkColumns(pa.schema([("published_at", FIXED["published_at"])])).batch("s", rows)
    assert told["published_at"].to_pylist() == [event.published_at]


def test_a_column_of_ticks_is_there_if_it_is_wanted_and_its_name_is_free(cluster: Cluster) -> None:
    fresh(cluster, "ticked", 2)
    fresh(cluster, "ticking", attrs="Tick int")
    wanted = options(cluster, subscribe="ticked", withTick="true")
    schema = schema_of(ReadOptions.parse(wanted))
    assert [field.name for field in schema.fields] == [*FIXED, "tick", "loc", "price"]
    assert "tick" not in [field.name for field in schema_of(ReadOptions.parse(wanted | {"withTick": "false"})).fields]
    names = [field.name for field in schema_of(ReadOptions.parse(wanted | {"attributes": "json"})).fields]
    assert names == [*FIXED, "tick", "attrs"]
    with pytest.raises(BadInput, match="an attribute has the name 'tick'"):
        schema_of(ReadOptions.parse(wanted | {"subscribe": "ticking"}))


def test_options_of_the_other_kind_of_query_are_refused() -> None:
    with pytest.raises(BadInput, match="for batch reads"):
        ReadOptions.parse(GIVEN | {"endingOffsets": "latest"}, streaming=True)
    with pytest.raises(BadInput, match="for streaming queries"):
        ReadOptions.parse(GIVEN | {"maxOffsetsPerTrigger": "5"}, streaming=False)


def at(seq: int, asof: int = 0, lease: str = "l") -> dict[str, Any]:
    return {"seq": seq, "asof": asof or seq, "lease": lease}


def test_a_plan_covers_every_range_once_and_depends_on_the_offsets_alone() -> None:
    start, end = {"a": at(1), "b": at(5)}, {"b": at(10), "a": at(1_000_001, 1_000_100), "c": at(4)}
    parts = plan(start, end, 1)
    assert parts == plan(start, dict(reversed(end.items())), 1)
    assert [part.replica for part in parts] == list(range(len(parts)))
    for stream, lo, hi in (("a", 1, 1_000_001), ("b", 5, 10), ("c", 1, 4)):
        mine = [part for part in parts if part.stream == stream]
        assert (mine[0].lo, mine[-1].hi) == (lo, hi)
        assert all(a.hi == b.lo for a, b in pairwise(mine))
    assert parts[0].asof == 1_000_100 and len(parts) == 2 + 1 + 1
    assert len(plan({"a": at(1)}, {"a": at(11)}, 4)) >= 4 and len(plan({}, {"a": at(3)}, 10)) == 2
    assert plan(end, end, 5) == []


def test_the_first_batch_begins_where_it_began_although_latest_has_moved() -> None:
    end = {"a": at(20) | {"from": 5}}
    assert [(part.lo, part.hi) for part in plan({"a": at(300)}, end, 1)] == [(5, 20)]


def test_a_limit_is_shared_in_proportion() -> None:
    assert shares({"a": 10, "b": 20}, 100) == {"a": 10, "b": 20}
    assert shares({"a": 1000, "b": 10, "c": 0}, 101) == {"a": 100, "b": 1, "c": 0}
    assert shares({"a": 1000, "b": 1}, 1) == {"a": 1, "b": 1}


def reader(cluster: Cluster, **more: Any) -> StreamReader:
    found = ReadOptions.parse(options(cluster, **more), streaming=True)
    return StreamReader(found, schema_of(found))


def rows(made: StreamReader, start: Any, end: Any) -> list[int]:
    parts = made.partitions(start, end)
    return [seq for part in parts for batch in made.read(part) for seq in batch.column("seq").to_pylist()]


def test_a_query_begins_where_it_is_told(cluster: Cluster) -> None:
    name = fresh(cluster, "begins", 30)
    for starting, seq in (("earliest", 1), ("latest", 31), (f'{{"{name}": 7}}', 7), (None, 31)):
        made = reader(cluster, subscribe=name, **({"startingOffsets": starting} if starting else {}))
        begin = made.initialOffset()
        assert begin[name]["seq"] == seq
        end = made.latestOffset(begin, ReadAllAvailable())
        assert rows(made, begin, end) == list(range(seq, 31))
        assert made.latestOffset(end, ReadAllAvailable()) == end  # nothing new: no new offset
        made.stop()
    made = reader(cluster, subscribe=name, startingOffsets='{"other": 7}')
    with pytest.raises(BadInput, match="names 'other'"):
        made.initialOffset()
    made.stop()
    with pytest.raises(UnknownStream, match="did you mean 'begins'"):
        reader(cluster, subscribe="begin")


def test_a_limit_and_available_now_bound_a_batch(cluster: Cluster) -> None:
    name = fresh(cluster, "bounded", 30)
    made = reader(cluster, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    limit = made.getDefaultReadLimit()
    assert limit == ReadMaxRows(8)
    made.prepareForTriggerAvailableNow()
    with cluster.connect() as t:
        t.publish_table(name, table(5, 30))
    offsets = [made.initialOffset()]
    while (end := made.latestOffset(offsets[-1], limit)) != offsets[-1]:
        offsets.append(end)
    assert [each[name]["seq"] for each in offsets] == [1, 9, 17, 25, 31]
    assert made.reportLatestOffset()[name]["seq"] == 36
    made.stop()


def test_a_batch_read_ends_where_it_is_told(cluster: Cluster) -> None:
    name = fresh(cluster, "ends", 30)
    given = options(cluster, subscribe=name, startingOffsets=f'{{"{name}": 3}}')
    schema = schema_of(ReadOptions.parse(given))
    for ending, hi in ((f'{{"{name}": 9}}', 9), ("latest", 31)):
        made = BatchReader(ReadOptions.parse(given | {"endingOffsets": ending}, streaming=False), schema)
        found = [seq for part in made.partitions() for b in made.read(part) for seq in b.column("seq").to_pylist()]
        assert found == list(range(3, hi))
    made = BatchReader(ReadOptions.parse(given | {"endingOffsets": f'{{"{name}": 99}}'}, streaming=False), schema)
    with pytest.raises(BadInput, match="ends at 31, not 99"):
        made.partitions()


def leases(cluster: Cluster, name: str) -> list[LeaseState]:
    with cluster.connect() as t:
        return [lease for lease in t.describe("r0").leases if lease.stream == name]


def until_released(cluster: Cluster, name: str, deadline: float = 10.0) -> None:
    end = time.monotonic() + deadline
    while leases(cluster, name):
        assert time.monotonic() < end, "a lease is left over"
        time.sleep(0.05)


def test_the_lease_of_a_batch_read_waits_for_its_first_task_and_then_less(cluster: Cluster) -> None:
    name = fresh(cluster, "short", 4)
    found = ReadOptions.parse(options(cluster, subscribe=name), streaming=False)
    made = BatchReader(found, schema_of(found))
    (part,) = made.partitions()
    assert [lease.ttl for lease in leases(cluster, name)] == [LEASE_SECONDS]
    list(made.read(part))
    assert [lease.ttl for lease in leases(cluster, name)] == [BATCH_SECONDS]
    told = ReadOptions.parse(options(cluster, subscribe=name, leaseSeconds="3600"))
    assert told.lease_seconds == told.batch_seconds == 3600.0


def test_a_batch_read_that_has_no_tasks_leaves_no_lease(cluster: Cluster) -> None:
    name = fresh(cluster, "none", 4)
    for ending, wrong in (("4", None), ("99", "ends at 5, not 99")):
        given = options(cluster, subscribe=name, startingOffsets=f'{{"{name}": 4}}')
        found = ReadOptions.parse(given | {"endingOffsets": f'{{"{name}": {ending}}}'}, streaming=False)
        made = BatchReader(found, schema_of(found))
        if wrong is None:
            assert made.partitions() == []
        else:
            with pytest.raises(BadInput, match=wrong):
                made.partitions()
        until_released(cluster, name)


def test_a_checkpoint_counts_more_than_starting_offsets(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    name = fresh(cluster, "ignored", 10)
    made = reader(cluster, subscribe=name, startingOffsets="earliest")
    with caplog.at_level(logging.WARNING, "tidings.spark"):
        begin = made.initialOffset()
        planned = made.latestOffset(begin, ReadAllAvailable())
    assert not caplog.text
    made.stop()
    for replayed, starting in ((False, "earliest"), (True, "latest")):
        caplog.clear()
        made = reader(cluster, subscribe=name, startingOffsets=starting)
        with caplog.at_level(logging.WARNING, "tidings.spark"):
            if replayed:  # the first batch was planned, and not committed
                assert rows(made, made.initialOffset(), planned) == list(range(1, 11))
            made.latestOffset(planned, ReadAllAvailable())
        assert "startingOffsets is ignored" in caplog.text and f"'{name}': 11" in caplog.text
        made.stop()


def test_a_batch_that_runs_again_has_a_lag(cluster: Cluster) -> None:
    name = fresh(cluster, "lagging", 10)
    made = reader(cluster, subscribe=name)
    made.partitions({}, {name: at(5, lease="") | {"from": 1}})
    assert made.reportLatestOffset() == {name: {"seq": 11, "lag": 6}}
    made.stop()
    made = reader(cluster, subscribe=name)
    made.prepareForTriggerAvailableNow()
    with cluster.connect() as t:
        t.publish_table(name, table(2, 10))
    made.latestOffset({name: at(11, lease="") | {"from": 1}}, ReadAllAvailable())  # nothing that belongs to this run
    assert made.reportLatestOffset() == {name: {"seq": 13, "lag": 2}}
    made.stop()


def test_what_is_collected_is_not_lost(cluster: Cluster) -> None:
    name = fresh(cluster, "losses", 10)
    with cluster.connect() as t:
        t.collect(name, before=8)
    made = reader(cluster, subscribe=name, startingOffsets="earliest")
    begin = made.initialOffset()
    assert rows(made, begin, made.latestOffset(begin, ReadAllAvailable())) == [8, 9, 10, 11]
    made.stop()


def lags(monkeypatch: pytest.MonkeyPatch, horizon: int) -> None:
    """The nearest region has no more than this yet."""
    known = source.streams_of

    def lagging(*of: Any) -> dict[str, Any]:
        return {name: msgspec.structs.replace(info, horizon=horizon) for name, info in known(*of).items()}

    monkeypatch.setattr(source, "streams_of", lagging)


def test_a_checkpoint_ahead_of_the_stream_fails_the_query_or_is_left_behind(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    name = fresh(cluster, "ahead", 11)
    ahead = {name: at(50, lease="spark-gone") | {"from": 1}}
    made = reader(cluster, subscribe=name)
    with pytest.raises(DataLoss, match=r"\[12, 50\) is lost"):
        made.latestOffset(ahead, ReadAllAvailable())
    made.stop()
    until_released(cluster, name)
    made = reader(cluster, subscribe=name, failOnDataLoss="false", timeoutSeconds="5")
    with caplog.at_level(logging.WARNING, "tidings.spark"):
        end = made.latestOffset(ahead, ReadAllAvailable())
    assert "going on at 12" in caplog.text
    assert end == {name: at(12, lease="") | {"from": 12}} and rows(made, ahead, end) == []
    made.stop()
    with cluster.connect() as t:
        t.publish_table(name, table(3, 11))
    made = reader(cluster, subscribe=name, failOnDataLoss="false", timeoutSeconds="5")
    assert rows(made, end, made.latestOffset(end, ReadAllAvailable())) == [12, 13, 14]
    made.stop()


def test_a_region_that_lags_has_lost_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = fresh(cluster, "behind", 11)
    lags(monkeypatch, 5)
    read = {name: at(12, lease="") | {"from": 1}}
    made = reader(cluster, subscribe=name)
    assert made.latestOffset(read, ReadAllAvailable()) == read
    made.stop()
    made = reader(cluster, subscribe=name, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "tidings.spark"):
        end = made.latestOffset({name: at(50, lease="") | {"from": 1}}, ReadAllAvailable())
    assert "going on at 12" in caplog.text and end == {name: at(12, lease="") | {"from": 12}}
    made.stop()


def test_a_stream_that_was_deleted_fails_the_query_or_is_left_out(cluster: Cluster) -> None:
    name = fresh(cluster, "remaining", 3)
    read = {name: at(1, lease=""), "deleted": at(9, lease="spark-gone") | {"from": 1}}
    made = reader(cluster, subscribe=name)
    with pytest.raises(DataLoss, match="'deleted' is in the checkpoint"):
        made.latestOffset(read, ReadAllAvailable())
    made.stop()
    made = reader(cluster, subscribe=name, failOnDataLoss="false")
    end = made.latestOffset(read, ReadAllAvailable())
    assert rows(made, read, end) == [1, 2, 3] and end["deleted"]["seq"] == 9
    made.stop()


@pytest.mark.parametrize("named", ["subscribe", "subscribePattern"])
def test_a_stream_that_is_deleted_while_it_is_read_fails_the_query_or_is_left_out(cluster: Cluster, named: str) -> None:
    for tolerant in ("true", "false"):
        stays, goes = fresh(cluster, f"stays-{named}-{tolerant}", 3), fresh(cluster, f"goes-{named}-{tolerant}", 3)
        which = f"{stays},{goes}" if named == "subscribe" else f".*-{named}-{tolerant}"
        given = {named: which, "startingOffsets": "earliest", "failOnDataLoss": str(tolerant == "false").lower()}
        made = reader(cluster, **given)
        begin = made.initialOffset()
        end = made.latestOffset(begin, ReadAllAvailable())
        assert rows(made, begin, end) == [1, 2, 3, 1, 2, 3]
        with cluster.connect() as t:
            t.publish_table(stays, table(2))
            t.delete_stream(goes)
        if tolerant == "false":
            with pytest.raises(DataLoss, match=f"'{goes}' is in the checkpoint"):
                made.latestOffset(end, ReadAllAvailable())
        else:
            after = made.latestOffset(end, ReadAllAvailable())
            assert rows(made, end, after) == [4, 5] and made.reportLatestOffset().keys() == {stays}
            again = reader(cluster, **given | ({named: stays} if named == "subscribe" else {}))  # runs a batch again
            assert rows(again, begin, end) == [1, 2, 3], "of what was deleted there is nothing left"
            again.stop()
        made.stop()


def test_a_stream_that_was_created_anew_is_not_continued_but_begun(cluster: Cluster) -> None:
    first = fresh(cluster, "renewed", 5)
    made = reader(cluster, subscribe="renewed", startingOffsets="earliest")
    begin = made.initialOffset()
    end = made.latestOffset(begin, ReadAllAvailable())
    assert rows(made, begin, end) == [1, 2, 3, 4, 5]
    with cluster.connect() as t:
        t.delete_stream("renewed")
    second = fresh(cluster, "renewed", 9)
    with pytest.raises(DataLoss, match=f"'{first}' is in the checkpoint"):
        made.latestOffset(end, ReadAllAvailable())
    made.stop()
    made = reader(cluster, subscribe="renewed", failOnDataLoss="false")
    after = made.latestOffset(end, ReadAllAvailable())
    assert second != first and rows(made, end, after) == list(range(1, 10))
    made.stop()


def test_a_range_that_was_declared_lost_fails_a_query_and_is_named_or_is_skipped_with_a_warning(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    name = fresh(cluster, "declared", 10)
    declare_lost(ClusterTarget(cluster.local.files.root, None), name, 11, 21)
    with cluster.connect() as t:
        assert t.publish(name, payload=b"behind it").seq == 21
    made = reader(cluster, subscribe=name, startingOffsets="earliest")
    begin = made.initialOffset()
    end = made.latestOffset(begin, ReadAllAvailable())
    with pytest.raises(DataLoss, match=r"'declared': \[11, 21\) was declared lost"):
        rows(made, begin, end)
    made.stop()
    made = reader(cluster, subscribe=name, startingOffsets="earliest", failOnDataLoss="false")
    begin = made.initialOffset()
    with caplog.at_level(logging.WARNING, "tidings.spark"):
        assert rows(made, begin, made.latestOffset(begin, ReadAllAvailable())) == [*range(1, 11), 21]
    assert "[11, 21) was declared lost" in caplog.text
    made.stop()


def test_a_lease_is_resumed_after_a_restart_and_moves_with_commits(cluster: Cluster) -> None:
    name = fresh(cluster, "resumed", 60, gc="by-key")
    first = reader(cluster, subscribe=name, startingOffsets="earliest")
    begin = first.initialOffset()
    end = first.latestOffset(begin, ReadAllAvailable())
    once = rows(first, begin, end)
    first.stop()
    with cluster.connect() as t:
        t.publish_table(name, table(60, 60))
    second = reader(cluster, subscribe=name)
    assert rows(second, begin, end) == once == list(range(11, 61))
    later = second.latestOffset(end, ReadAllAvailable())
    assert later[name]["lease"] == end[name]["lease"] and later[name]["asof"] == 121
    second.commit(later)
    until_forgotten(cluster, name, end[name]["asof"])
    with pytest.raises(LeaseExpired, match="are forgotten"):
        rows(second, begin, end)
    second.stop()


@pytest.mark.parametrize(
    ("planned", "says"), [(True, "checkpoint's offsets directory"), (False, "Load the data frame")]
)
def test_what_to_do_about_forgotten_rows_depends_on_who_planned_them(planned: bool, says: str) -> None:
    with pytest.raises(LeaseExpired, match=says):
        forgotten(Range("prices", 1, 9, 9, "l", 0), AsofGone("gone", 12), planned=planned)


def test_a_task_that_gets_nothing_says_so(cluster: Cluster) -> None:
    name = fresh(cluster, "silent", 3)
    made = reader(cluster, subscribe=name, timeoutSeconds="0.5")
    with pytest.raises(Exception, match=r"nothing of \[1, 9\) as of 9 came for 0.5 s"):
        list(made.read(Range(name, 1, 9, 9, "", 0)))
