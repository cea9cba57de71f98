"""Journals: what happened happens again; what is damaged, cut short or different is noticed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from net.rig import UNLUCKY, Ping, Pinger, PingTick, Pong, ping_host, run, until
from tidings.net import host as host_module
from tidings.net.codec import Codec
from tidings.net.frames import FrameError
from tidings.net.host import MachineFailed
from tidings.net.journal import HASHED, BadJournal, Journal, Replay, Start, replay
from tidings.net.names import Address
from tidings.protocols.kernel import Received

CODEC = Codec((Ping, Pong, PingTick))


def again(start: Start, entries: list[Any]) -> Pinger:
    return Pinger(start.params.decode(), 0.001)


def pings(path: Path, least: int, **options: Any) -> Journal:
    """The journal of a host that pinged another at least so often."""
    journal = Journal(path, b"b", codec=CODEC, **options)

    async def main() -> None:
        directory: dict[str, Address] = {}
        pinger = Pinger("b", 0.001)
        a = ping_host("a", pinger, directory, journal=journal)
        b = ping_host("b", Pinger(), directory)
        directory["a"], directory["b"] = await a.listen(), await b.listen()
        b.start()
        a.start()
        await until(lambda: len(pinger.pongs) >= least or journal.stopped)
        await asyncio.gather(a.stop(), b.stop())

    run(main())
    return journal


def test_a_journal_replays_to_the_same_hash(tmp_path: Path) -> None:
    journal = pings(tmp_path / "j", 2 * HASHED)
    steps: list[Any] = []
    result = replay(journal.path, again, codec=CODEC, on_step=lambda now, input, effects: steps.append(input))
    assert result == Replay("a", len(steps) + 1, journal.hash, complete=True, diverged=None)
    assert result.same


def test_a_machine_that_does_something_else_diverges_near_where_it_began(tmp_path: Path) -> None:
    class Other(Pinger):
        def start(self, now: float) -> Any:
            self.sent = 1
            return super().start(now)

    journal = pings(tmp_path / "j", HASHED)
    result = replay(journal.path, lambda start, entries: Other("b", 0.001), codec=CODEC)
    assert not result.same
    assert result.diverged == HASHED


def test_a_journal_that_a_crash_cut_short_replays_up_to_there(tmp_path: Path) -> None:
    journal = pings(tmp_path / "j", HASHED)
    whole = replay(journal.path, again, codec=CODEC)
    data = journal.path.read_bytes()
    for cut in (len(data) - 1, len(data) - 40, len(data) // 2, len(data) // 2 + 7):
        short = tmp_path / f"{cut}"
        short.write_bytes(data[:cut])
        result = replay(short, again, codec=CODEC)
        assert not result.complete
        assert result.same
        assert result.steps <= whole.steps


def test_damage_is_noticed(tmp_path: Path) -> None:
    journal = pings(tmp_path / "j", 10)
    data = bytearray(journal.path.read_bytes())
    data[len(data) // 2] ^= 1
    journal.path.write_bytes(data)
    try:
        noticed = not replay(journal.path, again, codec=CODEC).complete  # a length that leads beyond the end
    except BadJournal:
        noticed = True
    assert noticed
    other = tmp_path / "other"
    other.write_bytes(b"something else")
    with pytest.raises(BadJournal, match="no journal"):
        replay(other, again, codec=CODEC)


def test_a_journal_stops_at_its_limit_and_says_so(tmp_path: Path) -> None:
    journal = pings(tmp_path / "j", 1 << 30, limit=20_000)
    assert journal.stopped
    assert 20_000 <= journal.path.stat().st_size < 21_000
    result = replay(journal.path, again, codec=CODEC)
    assert result.complete and result.same


def test_the_input_that_made_a_machine_fail_makes_it_fail_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", b"b", codec=CODEC)

    async def main() -> None:
        host = ping_host("a", Pinger(), {}, journal=journal)
        host.start()
        host._put(Received("b", Ping(1)))
        host._put(Received("b", Ping(UNLUCKY)))
        with pytest.raises(MachineFailed):
            await host.failed
        with pytest.raises(RuntimeError, match="planted"):
            replay(journal.path, lambda start, entries: Pinger(), codec=CODEC)
        await host.stop()

    run(main())


def on_a_full_disk(path: Path) -> Journal:
    """A journal that can be begun, and to which nothing more can be written."""
    journal = Journal(path, b"b", codec=CODEC)
    journal._file.close()
    journal._file = open("/dev/full", "wb", buffering=256)  # noqa: SIM115 - the journal closes it
    return journal


def test_a_journal_that_cannot_be_written_ends_and_its_host_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_module, "JOURNAL_FLUSH", 0.01)
    journal = on_a_full_disk(tmp_path / "j")

    async def main() -> None:
        machine = Pinger()
        host = ping_host("a", machine, {}, journal=journal)
        host.start()
        for number in range(1000):
            host._put(Received("b", Ping(number)))
        await until(lambda: len(machine.pings) == 1000, "pings")
        await until(lambda: host.counters["journal_failed"], "the counter")
        await asyncio.sleep(0.05)
        assert (host.counters["journal_failed"], host.failed.done()) == (1, False)
        await host.stop()

    run(main())
    assert journal.stopped and journal.error is not None
    assert f"the journal {journal.path} ends here" in caplog.text


def test_a_machine_that_fails_says_so_even_if_its_journal_cannot_be_written(tmp_path: Path) -> None:
    async def main() -> None:
        host = ping_host("a", Pinger(), {}, journal=on_a_full_disk(tmp_path / "j"))
        host.start()
        host._put(Received("b", Ping(UNLUCKY)))
        with pytest.raises(MachineFailed, match="planted"):
            await asyncio.wait_for(host.failed, 5)
        await host.stop()

    run(main())


def test_a_journal_never_overwrites_another(tmp_path: Path) -> None:
    Journal(tmp_path / "j").close()
    with pytest.raises(FileExistsError):
        Journal(tmp_path / "j")


def test_a_journal_of_another_codec_is_a_typed_error(tmp_path: Path) -> None:
    journal = pings(tmp_path / "j", 3)
    with pytest.raises(BadJournal, match="does not decode") as caught:
        replay(journal.path, again, codec=Codec((Ping, Pong)))
    assert isinstance(caught.value.__cause__, FrameError)
