"""What a person reads: the verdict first, tables of 80 columns without folded words, rounded numbers, plain words."""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tidings.cli import audit, bench, check, output, pipeline, sim, status

PERCENTILES = {"p50": 12.34567, "p99": 1234.5678}
AUDIT = {
    "subscribers": 60,
    "streams": 3,
    "receipts": 12_345,
    "events": 123_456_789,
    **{"proved": 170, "violated": 0, "lost": 1, "lost_events": 7, "unverifiable": 1, "unverifiable_events": 3},
    "doubts": [
        {
            "subscriber": "desk-7",
            "stream": "prices",
            "region": "r0",
            "verdict": "unverifiable",
            "detail": "[1, 4): events were collected before they were read",
        }
    ],
    "violations": [],
    "found": 0,
    "latency_ms": PERCENTILES,
    "latency_ms_by_region": {"r0": PERCENTILES, "r1": {"p50": None, "p99": None}},
}
CLUSTER = {
    "regions": [
        {
            "name": region,
            "replicas": [
                {"id": f"{region}/p{n}~17", "role": "middle", "alive": n > 0, "pid": 4194304, "address": address}
                for n, address in enumerate(["10.100.100.100:17600", "10.100.100.101:17600", "10.100.100.102:17600"])
            ],
        }
        for region in ("east", "west")
    ],
    "streams": [
        {
            "name": "invalidations",
            "region": "east",
            "gc": "by-key",
            "horizon": {"east": 123_456_789, "west": 123_456_000},
            **{"live": 1_234_567, "collected": 122_222_222, "lost": 1_000, "events_per_s": 123_456.7},
        }
    ],
    "cuts": [["east", "west"]],
}
CAMPAIGN = {
    "violations": [],
    "faults": {"crash": 12, "partition": 0, **{f"fault_{n}": 1000 + n for n in range(12)}},
    "reached": {"sink commit answered again after fail-over": 54_367, "head lost": 1},
    "unreached": [f"a rare situation, number {n}" for n in range(7)],
    "hours_simulated": 0.01312,
}
SIMULATION = {
    "scenario": "sprinkler-smoke",
    "seed": 7,
    "trace_hash": "6f1c374bb876bf64fd4c8b6190203114",
    **{"sim_seconds": 14.0, "wall_seconds": 2.47712, "protocol_events": 80_651, "violations": []},
    "metrics": {
        "committed": 4005,
        "reports": {"tombstone_delivered": 2656.0, "recv_overflow": 6528.0},
        "faults": {"crash": 1, "unsynced_lost": 0},
    },
}
THROUGHPUT = {
    "bench": "throughput",
    "runs": [
        {
            "name": f"columnar-{kind}",
            "events_per_s": 12_345_678,
            "spread": [11_345_678, 13_345_678],
            "batch": "packed by the client",
            **{"regions": 1, "replicas": 3, "durability": kind, "events": 37_037_034, "rows": 0.12345},
            "cpu_us_per_event": {"head": 0.12345, "middle": 0.1, "tail": 0.1, "publisher": 0.2, "subscriber": 0.3},
            "others_cpus": 0.12,
        }
        for kind in ("memory", "durable")
    ],
    "ratio": {"columnar-memory/raw-sockets-with-a-long-name": 0.87654},
}
LATENCY = {
    "bench": "latency",
    "runs": [{"name": "memory-1", "latency_us": {"p50": 412.345, "p99": 1234.5}, "spread_p50": [400.1, 433.2]}],
    "ratio": {},
}
FILTER = {
    "bench": "filter",
    "runs": [
        {
            **{"name": f"index-{count}", "events_per_s": 3_456_789, "spread": [2_456_789, 3_567_890]},
            **{"matches_per_s": 34_567_890, "subscriptions": count, "matches_per_event": 9.51, "others_cpus": 0.12},
        }
        for count in (1_000, 100_000)
    ],
    "ratio": {"index-100000/duckdb-join-100000": 16.5},
    "goals": [{"run": "index-100000", "events_per_s": 1_000_000, "is": "required", "reached": True}],
}
PIPELINE = {
    "dir": "/srv/pipeline",
    "seconds": 41.234,
    "tables": [{"name": "intake_east", "rows": 123_456_789, "path": "/srv/pipeline/warehouse/intake_east"}],
    "streams": [
        {
            **{"stream": "invalidations", "events": 12_345_678, "live": 1_234_567, "collected_share": 0.98765432},
            **{"lost": 1_000, "events_per_s": 123_456.789, "latency_ms_p50": 12.3456, "latency_ms_p99": None},
        }
    ],
    "audit": AUDIT,
}
SHOWN = {
    "status": lambda: status.show(CLUSTER),
    "audit": lambda: audit.show(AUDIT),
    "check": lambda: check._show(CAMPAIGN, 20),
    "sim": lambda: sim._show(SIMULATION, "tidings sim x --seed 7"),
    "bench throughput": lambda: bench._show(THROUGHPUT),
    "bench latency": lambda: bench._show(LATENCY),
    "bench filter": lambda: bench._show(FILTER),
    "pipeline": lambda: pipeline._show(PIPELINE),
}


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("COLUMNS", "80")

    def show(name: str) -> str:
        SHOWN[name]()
        return capsys.readouterr().out

    return show


@pytest.mark.parametrize("name", SHOWN)
def test_every_line_fits_80_columns(printed: Any, name: str) -> None:
    assert [line for line in printed(name).splitlines() if len(line.rstrip()) > 80] == []


WHOLE = {
    "status": [
        *["replica", "address", "10.100.100.100:17600", "invalidations", "123,456,789"],
        "collected",
        "events/s",
    ],
    "pipeline": ["invalidations", "collected", "98.8 %", "events/s", "p50 ms", "p99 ms", "intake_east"],
    "check": ["sink commit answered again after fail-over"],
    "sim": ["tombstone delivered", "6f1c374bb876bf64fd4c8b6190203114"],
    "bench throughput": ["columnar-memory/raw-sockets-with-a-long-name", "13,345,678"],
}


@pytest.mark.parametrize("name", WHOLE)
def test_no_cell_is_folded(printed: Any, name: str) -> None:
    said = printed(name)
    assert [cell for cell in WHOLE[name] if cell not in said] == []


@pytest.mark.parametrize("name", SHOWN)
def test_fractions_are_rounded(printed: Any, name: str) -> None:
    assert re.findall(r"(?<![\d.])(?:0\.0*[1-9]\d{3,}|[1-9]\d*\.\d{3,})(?![\d.])", printed(name)) == []


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("audit", "0 violations; subscriptions: 170 proved, 0 violated, 1 lost, 1 unverifiable\n"),
        ("check", "0 violations in 20 seeds (0.0131 hours simulated)\n"),
        ("sim", "0 violations in sprinkler-smoke with seed 7\n"),
        ("pipeline", "0 violations; subscriptions: 170 proved"),
        ("status", "2 regions, 4 of 6 replicas alive, 1 stream\nthe link east-west is cut\n"),
    ],
)
def test_the_verdict_comes_first(printed: Any, name: str, verdict: str) -> None:
    assert printed(name).startswith(verdict)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        *[("status", word) for word in ("end:", "live:", "lost:")],
        *[("check", "a goal:"), ("audit", "a receipt:"), ("pipeline", "collected:"), ("sim", "delivered rows:")],
        *[("bench throughput", "lowest and highest"), ("bench throughput", "others cpus:")],
    ],
)
def test_words_that_are_not_common_are_explained(printed: Any, name: str, word: str) -> None:
    assert word in " ".join(printed(name).split())


def test_goals_that_were_not_reached_are_a_note(printed: Any) -> None:
    (note,) = re.findall(r"^note: .*$", printed("check"), re.MULTILINE)
    assert note.startswith("note: 7 goals not reached: a rare situation, number 0,")


def test_the_audit_says_who_is_unverifiable_and_why(printed: Any) -> None:
    said = " ".join(printed("audit").split())
    assert "unverifiable: desk-7 in prices [1, 4): events were collected before they were read" in said


def test_an_audit_without_receipts_says_how_to_get_them(capsys: pytest.CaptureFixture[str]) -> None:
    audit.show(AUDIT | {"receipts": 0, "doubts": [], "lost": 0})
    assert capsys.readouterr().out.startswith(
        "nothing to audit: no subscriber has sent receipts\n`tidings sub --receip"
    )


def test_regions_that_lag_are_named_with_what_they_lack(printed: Any) -> None:
    assert "behind in invalidations: west lacks 789\n" in printed("status")


def test_what_is_nowhere_worth_a_look_has_no_column(capsys: pytest.CaptureFixture[str]) -> None:
    stream: dict[str, Any] = CLUSTER["streams"][0]  # type: ignore[index, assignment]
    level = stream | {"horizon": {"east": 5, "west": 5}, "lost": 0}
    status.show(CLUSTER | {"streams": [level]})
    said = capsys.readouterr().out
    assert "behind" not in said and "lost" not in said and "collected" in said


def test_a_sentence_is_wrapped_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    output.say("word " * 40)
    assert capsys.readouterr().out.count("\n") == 1
    monkeypatch.setenv("COLUMNS", "80")
    output.say("word " * 40)
    assert capsys.readouterr().out.count("\n") > 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(12_345_678, "12,345,678"), (1234.5678, "1,235"), (99.96, "100"), (0.87654, "0.877"), (True, "yes"), ("x", "x")],
)
def test_numbers_are_rounded_for_a_person(value: Any, text: str) -> None:
    assert output.number(value) == text


# --- Spark's start ----------------------------------------------------------------------------------------------


def test_the_start_of_spark_is_shown_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tidings.spark import session

    with session._shown("starting Spark at local[2] ..."):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with session._shown("starting Spark at local[2] ..."):
        pass
    assert "starting Spark at local[2] ..." in capsys.readouterr().err


def test_the_start_of_spark_is_a_line_above_a_progress_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tidings.spark import session

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with output.progress("work") as report:
        assert report is not None
        with session._shown("starting Spark at local[2] ..."):
            report(1, 2, "half")
    assert "starting Spark at local[2] ...\n" in capsys.readouterr().err


# --- sub --------------------------------------------------------------------------------------------------------


def test_a_line_of_text_leaves_null_attributes_out() -> None:
    from tidings.cli.sub import line_of

    event: Any = SimpleNamespace(
        **{"stream": "s", "seq": 1, "kind": "data", "key": None, "payload": b"x", "published_at": "t", "region": "r0"},
        attrs={"loc": None, "price": 4.2, "desk": None},
    )
    assert line_of(event, text=True) == "s 1 data - x price=4.2\n"
    assert json.loads(line_of(event, text=False))["attrs"] == {"loc": None, "price": 4.2, "desk": None}


# --- stream list ------------------------------------------------------------------------------------------------


def test_every_column_of_the_streams_is_under_its_heading(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tidings.cli import stream
    from tidings.protocols.services.catalog import StreamDef
    from tidings.server import cluster_queries

    made = StreamDef("prices", "r0", "by-key", attrs="loc string, price double", mark="1a2b")
    monkeypatch.setattr(stream, "find_cluster", lambda *_: None)
    monkeypatch.setattr(stream, "query_target", lambda _: None)
    monkeypatch.setattr(cluster_queries, "streams", lambda _: [made])
    stream.list_streams()
    lines = capsys.readouterr().out.splitlines()
    (head,) = [line for line in lines if "region" in line]
    (row,) = [line for line in lines if "r0" in line]
    for column, value in (("name", "prices"), ("region", "r0"), ("gc", "by-key"), ("attrs", "loc")):
        assert row.index(value) == head.index(column), (head, row)
