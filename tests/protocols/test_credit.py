"""A window of credit."""

from __future__ import annotations

from tidings.protocols.credit import CreditWindow


def test_an_acknowledged_horizon_releases_every_message_that_ends_there_or_before() -> None:
    window = CreditWindow()
    for end in (10, 20, 30):
        window.add(end, 5)
    assert (len(window), window.bytes, window.first) == (3, 15, 10)
    assert window.release(20) == 2
    assert (len(window), window.bytes, window.first) == (1, 5, 30)


def test_a_horizon_inside_a_message_does_not_release_it() -> None:
    window = CreditWindow([10, 20])
    assert window.release(19) == 1
    assert window.first == 20


def test_a_window_that_is_cleared_has_nothing_in_flight() -> None:
    window = CreditWindow()
    window.add(10, 5)
    window.clear()
    assert (len(window), window.bytes, window.first) == (0, 0, 0)
    assert window.release(10) == 0
