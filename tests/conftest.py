"""How the tests are dealt out to the workers of `make test`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"
APART = ("faults", "lake", "live_command", "pipeline_refusals", "reader", "restore", "standing", "wheel")
"""Its tests that have no use for the session: without Spark, or with drivers of their own."""
ALSO = ("tests/lab/test_collection.py::test_the_queries_ask_spark",)
"""Tests of other places that have."""
REPEATS = (
    "tests/check/test_survivors.py::test_expected_rows",
    "tests/check/test_survivors.py::test_predicates_collect",
    "tests/core/test_filters.py::test_a_filter_passes_the_rows_for_which_the_oracle_says_true",
    "tests/core/test_filters.py::test_canonical_text",
    "tests/core/test_filters.py::test_laws_of_three_valued_logic",
    "tests/core/test_history.py::Test",
    "tests/core/test_history.py::test_a_row_that_survived",
    "tests/core/test_wire.py::test_a_damaged_body",
    "tests/core/test_wire.py::test_spans_come_back",
    "tests/lab/test_beyond.py::test_a_run_is_hit",
    "tests/lab/test_campaign.py::test_a_campaign_sums_up",
    "tests/lab/test_campaign.py::test_a_seed_of_each_mood_passes[aimed]",
    "tests/lab/test_campaign.py::test_a_seed_that_once_found_something",
    "tests/lab/test_campaign.py::test_the_same_seed",
    "tests/lab/test_desk.py::test_claimants_are_content",
    "tests/lab/test_desk.py::test_desks_are_content",
    "tests/lab/test_link_cut.py::test_a_short_run",
    "tests/lab/test_region_load.py::test_old_views",
    "tests/laws/",
    "tests/mutants/test_mutants.py::test_generated_mutants_are_stable",
    "tests/mutants/test_mutants.py::test_the_protocol_without_a_mutant",
    "tests/protocols/test_sinks.py::test_every_batch_is_published_once",
    "tests/protocols/test_views.py::test_a_swap_keeps",
    "tests/protocols/test_views.py::test_with_reinforcement",
    "tests/sim/test_run.py::test_a_scenario_may_let_a_swarm",
    "tests/sim/test_run.py::test_progress",
    "tests/sim/test_run.py::test_the_trace_hash",
    "tests/sim/test_world.py::test_the_same_seed",
    "tests/spark/test_reports.py::test_what_the_paper_left_out",
    "tests/spark/test_standing.py::test_whatever_comes",
    "tests/store/test_checkpoint.py::test_a_log_recovers",
)
"""Tests that run for long over lines that others run too: to count those takes longer than to run them."""


class OneSession(LoadScopeScheduling):
    """The tests that share a Spark session go to one worker, in one piece; all others to whoever is free.

    A session and its cluster take a minute to warm up and a gigabyte to keep: one is enough.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(ALSO):
            return SPARK
        if not nodeid.startswith(SPARK):
            return nodeid
        file = nodeid.partition("::")[0]
        return file if file in {f"{SPARK}test_{name}.py" for name in APART} else SPARK


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Without the tracer of coverage, for some. (The mark `no_cover` does that, but not in a worker: two are nested
    there, and the outer one goes on when the inner one is stopped.)"""
    tracer = sys.gettrace()
    if tracer is None or not item.nodeid.startswith(REPEATS):
        return (yield)
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSession:
    return OneSession(config, log)
