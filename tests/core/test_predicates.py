"""Predicate events: what may be published, what they carry, and that what they collected stays collected."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tidings.core.errors import BadFilter, BadInput, Contradiction, NotFinal
from tidings.core.filters import AttrType, parse_attributes
from tidings.core.gc import GcPolicy, due_before
from tidings.core.history import History
from tidings.core.predicates import Predicate, predicates_in, refuse_unsound
from tidings.core.rows import GC, ROW_SCHEMA, ArrowRows, Origin, Rows, before_rows, data_rows, where_rows
from tidings.core.span import Span

SCHEMA = parse_attributes("tenant string, type string, n int")
ACME = Predicate.make("tenant = 'acme'", SCHEMA).text
KEY = Predicate.make("key = 'a'", SCHEMA, by_key=True).text
BY_KEY = GcPolicy(by_key=True)


def tenants(lo: int, names: list[str | None], keys: list[bytes | None] | None = None) -> Span:
    column = {"tenant": pa.array(names, pa.string())}
    origin = Origin(lo, lo + len(names), at=float(lo))
    return Span.of("s", lo, data_rows(lo, keys, [b"x"] * len(names), origin, column))


def wheres(lo: int, *texts: str) -> Span:
    return Span.of("s", lo, where_rows(lo, texts, Origin(lo, lo + len(texts), at=float(lo))))


def alive(history: History) -> list[int]:
    return history.rows(1, history.horizon, history.horizon).rows.numbers.tolist()  # type: ignore[no-any-return]


def test_a_predicate_says_all_that_is_needed_to_apply_it() -> None:
    predicate = Predicate.make("TYPE='session' and Tenant = 'acme'", SCHEMA)
    assert predicate.text == "(tenant string, type string) type = 'session' AND tenant = 'acme'"
    assert predicate.attributes == {"tenant": AttrType.STRING, "type": AttrType.STRING}
    assert Predicate.read(predicate.text) == predicate
    assert predicate.sql == "type = 'session' AND tenant = 'acme'"


@pytest.mark.parametrize("text", ["tenant = 'acme'", "key = 'a' and n = 1", "seq < 100", "key is null or type is null"])
def test_where_events_collect_by_key_a_predicate_names_only_the_key(text: str) -> None:
    Predicate.make(text, SCHEMA)
    with pytest.raises(NotFinal, match="only the key"):
        Predicate.make(text, SCHEMA, by_key=True)
    Predicate.make("key in ('a', 'b')", SCHEMA, by_key=True)


@pytest.mark.parametrize(
    "text", ["region = 'eu'", "publisher = 'p'", "kind = 'gc'", "lower(tenant) = 'a'", "upper(tenant) = 'A'"]
)
def test_a_predicate_depends_on_nothing_that_differs_between_nodes(text: str) -> None:
    with pytest.raises(NotFinal):
        Predicate.make(text, SCHEMA)


def test_what_is_no_filter_is_no_predicate() -> None:
    with pytest.raises(BadFilter, match="did you mean tenant"):
        Predicate.make("tenat = 'acme'", SCHEMA)
    for text in ("tenant = 'acme'", "(tenant string)", "(tenant strin) tenant = 'acme'"):
        with pytest.raises(BadInput):
            Predicate.read(text)


def test_a_predicate_collects_the_earlier_rows_for_which_it_is_true() -> None:
    history = History("s")
    history.accept(tenants(1, ["acme", "beta", None, "acme"]))
    history.accept(wheres(5, ACME))
    history.accept(tenants(6, ["acme"]))
    assert alive(history) == [2, 3, 5, 6]
    assert [history.killer(seq) for seq in range(1, 7)] == [5, None, None, 5, None, None]
    assert history.rows(1, 7, 5).rows.numbers.tolist() == [1, 2, 3, 4, 5, 6]


def test_rows_that_lack_an_attribute_have_null_there() -> None:
    history = History("s")
    history.accept(Span.of("s", 1, data_rows(1, None, [b"x"])))
    history.accept(wheres(2, Predicate.make("n is null", SCHEMA).text))
    assert alive(history) == [2]


def test_a_predicate_event_is_collected_by_the_same_predicate_and_by_before_n_only() -> None:
    history = History("s")
    other = Predicate.make("tenant is null", SCHEMA).text  # true of an event that has no attributes
    history.accept(wheres(1, ACME, other, ACME, other))
    assert alive(history) == [3, 4]
    history.accept(Span.of("s", 5, before_rows(5, [4])))
    history.accept(wheres(6, other))
    assert alive(history) == [5, 6]


def test_a_key_that_a_predicate_collected_can_come_again() -> None:
    history = History("s", BY_KEY)
    history.accept(tenants(1, [None] * 3, [b"a", b"b", None]))
    history.accept(wheres(4, KEY))
    assert history.purge() >= 0
    history.accept(tenants(5, [None] * 2, [b"a", b"a"]))
    assert alive(history) == [2, 3, 4, 6]
    assert history.killer(5) == 6 and history.killer(1) in (4, "gone")


def test_within_one_batch_the_first_collector_counts() -> None:
    history = History("s", BY_KEY)
    rows = tenants(1, [None], [b"a"]).rows.concat([wheres(2, KEY).rows, tenants(3, [None], [b"a"]).rows])
    history.accept(Span.of("s", 1, rows))
    assert [history.killer(seq) for seq in (1, 2, 3)] == [2, None, None]
    assert history.rows(1, 4, 3).rows.numbers.tolist() == [2, 3]


@pytest.mark.parametrize("policy", [GcPolicy(), BY_KEY])
def test_what_a_predicate_collected_is_purged(policy: GcPolicy) -> None:
    history = History("s", policy)
    history.accept(tenants(1, ["acme"] * 90 + ["beta"] * 10, [b"a"] * 90 + [b"%d" % i for i in range(10)]))
    history.accept(wheres(101, KEY if policy.by_key else ACME))
    history.lease("spark", 50)
    assert history.purge() <= 90 and history.floor == 50
    history.release("spark")
    history.purge()
    assert history.floor == 102 and history.rows_stored == history.live == 11


@pytest.mark.parametrize(
    ("policy", "where"),
    [(BY_KEY, ACME), (BY_KEY, "() seq < 3L"), (GcPolicy(), "tenant = 'acme'"), (GcPolicy(), "() nonsense =")],
)
def test_a_predicate_that_must_not_be_there_is_refused_and_changes_nothing(policy: GcPolicy, where: str) -> None:
    history = History("s", policy)
    history.accept(tenants(1, ["acme", None], [b"a", b"b"]))
    with pytest.raises(BadInput):
        history.accept(wheres(3, where))
    assert history.horizon == 3 and alive(history) == [1, 2]
    history.accept(tenants(3, [None], [b"a"]))
    assert history.live == (2 if policy.by_key else 3)


def test_a_collector_with_a_key_is_refused() -> None:
    schema = ROW_SCHEMA.append(pa.field("where", pa.string()))
    columns = [pa.array([GC], pa.uint8()), pa.array([b"k"]), pa.array([b""]), pa.nulls(1, pa.int64()), pa.array([KEY])]
    rows = ArrowRows.dense(1, pa.RecordBatch.from_arrays(columns, schema=schema))
    with pytest.raises(BadInput, match="without key"):
        predicates_in(rows)


def test_the_column_for_predicates_goes_with_the_last_of_them() -> None:
    rows: Rows = tenants(1, ["acme", "beta"]).rows.concat([wheres(3, ACME).rows])
    assert isinstance(rows, ArrowRows) and "where" in rows.batch.schema.names
    for part in (rows.slice(1, 3), rows.take(np.array([0, 1]))):
        assert isinstance(part, ArrowRows) and "where" not in part.batch.schema.names
        assert part.same(tenants(1, ["acme", "beta"]).rows)
    assert "where" in rows.slice(2, 4).batch.schema.names
    assert [(seq, found.text) for seq, found in predicates_in(rows)] == [(3, ACME)]


def test_predicate_events_count_as_kept_so_that_old_ones_go() -> None:
    history = History("s", GcPolicy.parse("keep-last:2"))
    history.accept(wheres(1, *[f"(n int) n = {i}" for i in range(6)]))
    assert due_before(history.policy, history, now=0.0) == 5


def test_a_row_that_is_said_to_survive_its_predicate_is_a_contradiction() -> None:
    history = History("s")
    survivors = tenants(1, ["acme", "beta"]).rows
    history.accept(Span("s", 1, 3, 9, survivors))
    with pytest.raises(Contradiction, match="event 3 collects row 1, which is said to survive as of 9"):
        history.accept(wheres(3, ACME))
    assert history.horizon == 3
    history.accept(wheres(3, Predicate.make("tenant = 'gamma'", SCHEMA).text))
    delta = Predicate.make("tenant = 'delta'", SCHEMA).text
    beside = tenants(4, ["delta"]).rows.concat([wheres(5, delta).rows])
    with pytest.raises(Contradiction, match="event 5 collects row 4"):
        history.accept(Span("s", 4, 6, 9, beside))


# --- what an owner lets pass ------------------------------------------------------------------------------


def event(kind: int = 0, key: bytes | None = None, before: int | None = None) -> ArrowRows:
    columns = [
        pa.array([value], field.type) for value, field in zip((kind, key, b"x", before), ROW_SCHEMA, strict=True)
    ]
    return ArrowRows(None, pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA), first=1)


@pytest.mark.parametrize("rows", [event(), event(key=b"a"), event(GC, before=1), event(GC)])
def test_events_that_keep_collection_final_may_be_published(rows: ArrowRows) -> None:
    refuse_unsound(rows, SCHEMA)


@pytest.mark.parametrize("rows", [event(GC, b"a", 1), event(GC, b"a"), event(0, None, 1), event(0, b"a", 1), event(7)])
def test_an_event_that_another_could_collect_without_implying_it_may_not_be_published(rows: ArrowRows) -> None:
    with pytest.raises(BadInput, match="kind 1"):
        refuse_unsound(rows, SCHEMA)


@pytest.mark.parametrize("text", ["(n string) n = '1'", "(gone string) gone = 'a'", "(n bigint) n > 1L"])
def test_a_predicate_over_other_attributes_than_the_stream_s_may_not_be_published(text: str) -> None:
    with pytest.raises(BadInput, match="no attribute of the stream"):
        refuse_unsound(where_rows(1, [text]), SCHEMA)
    refuse_unsound(where_rows(1, ["(n int) n > 1"]), SCHEMA)


def test_a_predicate_that_is_committed_already_is_applied_whatever_it_makes() -> None:
    large = f"(tenant string) length(concat({', '.join(['tenant'] * 33)})) > 100"
    with pytest.raises(BadInput, match="joins more than 32 texts"):
        refuse_unsound(where_rows(1, [large]), SCHEMA)
    history = History("s")
    history.accept(tenants(1, ["acme", "x"]))
    history.accept(wheres(3, large))
    assert alive(history) == [2, 3]
