"""SP7-SP9: the workload has the distribution it claims, and what is stored is what the closed form expects."""

from __future__ import annotations

import numpy as np
import pytest

from tidings.lab import collection
from tidings.lab.collection import FAR, KEYS, expected_distinct, finite_keys, infinite_keys, stored, zeta


@pytest.mark.parametrize("skew", [1.1, 1.5])
def test_draws_follow_the_zeta_distribution(skew: float) -> None:
    drawn = zeta(np.random.default_rng(1), skew, 1_000_000)
    total = collection.zeta_sum(skew)
    for k in (1, 2, 10):
        assert (drawn == k).mean() == pytest.approx(k**-skew / total, abs=0.001)
    for far in (1e3, 1e9, 1e15):
        assert (drawn > far).mean() == pytest.approx(far ** (1 - skew) / (skew - 1) / total, abs=0.001)
    beyond = drawn[drawn >= FAR]
    assert len(np.unique(beyond)) == len(beyond)


def test_the_closed_form_has_the_values_that_are_known() -> None:
    saved = {n: 1 - expected_distinct(1.1, n, 100_000) / n for n in (10**4, 10**5, 10**6)}
    assert saved == pytest.approx({10**4: 0.69, 10**5: 0.83, 10**6: 0.935}, abs=0.005)  # SP9d
    endless = {n: 1 - expected_distinct(1.1, n, None) / n for n in (10**5, 10**6, 10**7)}
    assert endless == pytest.approx({10**5: 0.57, 10**6: 0.65, 10**7: 0.72}, abs=0.005)
    assert expected_distinct(1.5, 1, None) == pytest.approx(1.0, abs=1e-3)
    assert expected_distinct(2.0, 10**9, 50) == pytest.approx(50, abs=1e-6)


def test_a_history_stores_what_the_closed_form_expects() -> None:
    for flow, keys in ((infinite_keys(1.1, 100_000, 3), None), (finite_keys(1.1, 100_000, 3, False), KEYS)):
        *_, (n, kept) = stored(flow)
        assert n == 100_000
        assert kept == pytest.approx(expected_distinct(1.1, n, keys), rel=0.02)


def test_inserting_adds_one_key_in_eleven_events() -> None:
    batches = list(finite_keys(1.1, 110_000, 0, True))
    everything = np.concatenate(batches)
    new = everything[everything >= KEYS]
    assert len(np.unique(new)) == pytest.approx(len(everything) / 11, rel=0.01)
    assert len(new) > len(np.unique(new))  # and some of them are invalidated later


def test_new_keys_attract_more() -> None:
    counts = collection.ages(1.3, 100, 200, seed=1)
    assert counts.sum() == pytest.approx(20_000, rel=0.05)
    assert counts[0] > counts[1] > counts[5:10].mean() > counts[100:150].mean()


@pytest.mark.parametrize(("saved", "holds"), [(0.83, True), (0.79, False), (0.935, False)])
def test_what_is_saved_is_judged_at_one_number_of_events(saved: float, holds: bool) -> None:
    rows = [{"skew": 1.1, "n": n, "saved": each, "runs": 2} for n, each in ((10_000, 0.85), (collection.KEYS, saved))]
    assert collection._saves("SP9.saves", rows, 0.85, "", "").holds is holds
