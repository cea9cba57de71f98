"""The blocking client, and the commands pub, sub, collect and why, against a cluster in another thread."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from client.rig import town
from tidings import errors, sync
from tidings.client import batching
from tidings.net.loop import loop_factory


class Background:
    """A cluster that runs in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Background:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *args: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)

    def _run(self) -> None:
        async def main() -> None:
            self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
            async with town(self.folder) as cluster:
                self.url = cluster.url()
                self._ready.set()
                await self._over.wait()

        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(main())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Background(tmp_path_factory.mktemp("town")) as background:
        yield background.url


def test_blocking_code_publishes_and_subscribes(url: str) -> None:
    with sync.connect(url, client_id="blocking") as t:
        t.create_stream("plain", attrs="n bigint")
        ack = t.publish("plain", key=b"k", payload=b"0", attrs={"n": 0})
        for at in range(1, 3000):
            t.post("plain", payload=b"%d" % at, attrs={"n": at})
        acks = t.flush()
        assert (ack.seq, acks[0].lo, acks[-1].hi) == (1, 2, 3001)
        t.publish_table("plain", pa.table({"n": [3000]}))
        with t.subscribe("plain", start="earliest") as sub:
            got = []
            for event in sub:
                got.append(event)
                if len(got) == 3001:
                    break
            assert [event.attrs["n"] for event in got] == list(range(3001))
            with pytest.raises(TimeoutError):
                sub.next(0.05)
        with t.subscribe("plain", start=2990, where="n > 2995") as sub:
            spans = []
            for span in sub.spans():
                spans += span.rows.column("n").to_pylist()
                if len(spans) == 5:
                    break
            assert spans == list(range(2996, 3001))
            with pytest.raises(errors.BadFilter):
                sub.where("n >")
            assert sub.where("n > 5000")["plain"] > 3000
        assert t.why("plain", 1).state == "row"
        t.collect("plain", before=5)
        assert t.stream("plain").region == "r0"


def test_blocking_code_is_told_what_is_wrong(url: str) -> None:
    with sync.connect(url) as t:
        with pytest.raises(errors.UnknownStream):
            t.publish("nothing")
        t.post("nothing", payload=b"x")
        with pytest.raises(errors.UnknownStream):
            t.flush()
        assert t.flush() == []
    with pytest.raises(errors.Closed):
        t.post("s0")
    with pytest.raises(errors.Unreachable), sync.connect("tidings://127.0.0.1:1", timeout=0.2):
        pass


def test_a_bad_post_does_not_keep_the_others_from_being_durable_at_the_end(url: str) -> None:
    with sync.connect(url) as t:
        t.create_stream("mostly-good")
    t = sync.connect(url)
    t.open()
    for _ in range(3000):
        t.post("mostly-good", payload=b"good")
    t.post("nothing", payload=b"bad")
    with pytest.raises(errors.UnknownStream):
        t.close()
    with sync.connect(url) as t:
        assert t.publish("mostly-good").seq == 3001


def test_of_many_bad_posts_some_are_raised_and_the_others_counted(url: str) -> None:
    t = sync.connect(url)
    t.open()
    t._posts.extend([("nothing", None, b"%d" % at, None) for at in range(100)])
    with pytest.raises(errors.UnknownStream, match=f"besides, {100 - sync.KEPT} other posted events were refused"):
        t.flush()
    with pytest.raises(errors.UnknownStream) as second:
        t.flush()
    assert "besides" not in str(second.value)
    with pytest.raises(errors.UnknownStream, match=f"besides, {sync.KEPT - 3} other"):
        t.close()


def test_closing_does_not_wait_for_ever_for_a_cluster_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "PENDING", 10)
    with Background(tmp_path) as background:
        t = sync.connect(background.url, timeout=10.0)
        t.open()
        t.create_stream("s")
        t._async.timeout = 0.3
    for at in range(20):  # more than may be pending
        t.post("s", key=b"%d" % at)
    deadline = time.monotonic() + 20
    while t._async._batcher.pending < 20:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for at in range(20, 100):  # there is no room for these
        t.post("s", key=b"%d" % at)
    with pytest.raises(errors.PublishFailed, match="100 posted events are not durable") as told:
        t.close()
    assert sorted([int(key or b"") for each in told.value.failed for key in each.keys]) == list(range(100))
    assert [each.in_doubt for each in told.value.failed] == [True, *[False] * 80]


def test_a_call_in_another_thread_ends_when_the_connection_is_closed(url: str) -> None:
    told: list[BaseException] = []
    begun = threading.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            t._call(endless())
        except errors.TidingsError as error:
            told.append(error)

    t = sync.connect(url)
    t.open()
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert begun.wait(10)
    t.close()
    thread.join(10)
    assert not thread.is_alive()
    assert [type(error) for error in told] == [errors.Closed]
    with pytest.raises(errors.Closed):
        t.publish("s0")


def test_threads_that_publish_while_the_connection_is_closed_are_told_so(url: str) -> None:
    told: list[BaseException] = []

    def call(stream: str) -> None:
        try:
            while True:
                t.publish(stream)
        except errors.TidingsError as error:
            told.append(error)

    t = sync.connect(url)
    t.open()
    threads = [threading.Thread(target=call, args=(stream,), daemon=True) for stream in ("s0", "keyed", "nothing")]
    for thread in threads:
        thread.start()
    t.publish("s0")
    t.close()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads) and len(told) == 3
    assert {type(error) for error in told} <= {errors.Closed, errors.UnknownStream}


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, loop_factory() or asyncio.new_event_loop])
@pytest.mark.parametrize("turns", range(4))
def test_a_call_that_ends_while_the_loop_does_is_answered(
    factory: Callable[[], asyncio.AbstractEventLoop], turns: int
) -> None:
    async def answer() -> int:
        return 7

    def stop(turns: int) -> None:
        loop.call_soon(stop, turns - 1) if turns else loop.stop()

    loop = factory()
    called = asyncio.run_coroutine_threadsafe(answer(), loop)
    stop(turns)
    thread = threading.Thread(target=sync._run, args=(loop,))
    thread.start()
    thread.join()
    assert called.done() and (called.cancelled() or called.result() == 7)


def test_a_durable_subscription_of_blocking_code_resumes(url: str) -> None:
    with sync.connect(url) as t:
        t.create_stream("jobs")
        for at in range(6):
            t.post("jobs", payload=b"%d" % at)
        t.flush()
        with t.subscribe("jobs", start="earliest", name="worker") as sub:
            assert [sub.next(5).payload for _ in range(3)] == [b"0", b"1", b"2"]
            sub.ack()
        with t.subscribe("jobs", start="earliest", name="worker") as sub:
            assert [sub.next(5).payload for _ in range(3)] == [b"3", b"4", b"5"]


# --- the command line -------------------------------------------------------------------------------------


def tidings(url: str, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from tidings.cli.app import main; main()", *arguments]
    env = os.environ | {"TIDINGS_URL": url, "COLUMNS": "120"}
    return subprocess.run(command, capture_output=True, check=False, input=stdin, env=env, timeout=30)


def told(result: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_commands_pub_sub_collect_and_why(url: str) -> None:
    with sync.connect(url) as t:
        t.create_stream("ticker", attrs="loc string, at timestamp")
    attrs = '{"loc": "NY", "at": "2026-01-02T03:04:05Z"}'
    (first,) = told(tidings(url, "pub", "ticker", "--key", "IBM", "--attrs", attrs, "one", "--json"))
    assert first == {"stream": "ticker", "lo": 1, "hi": 2}
    lines = b'{"key": "a", "payload": "two", "attrs": {"loc": "LA"}}\n{"payload": {"hex": "ff00"}}\n'
    (more,) = told(tidings(url, "pub", "ticker", "--from-json", "--json", stdin=lines))
    assert more == {"stream": "ticker", "lo": 2, "hi": 4}
    assert tidings(url, "pub", "ticker", "-", stdin=b"four\nfive\n").stdout == b"ticker: numbers 4 to 5\n"
    events = told(tidings(url, "sub", "ticker", "--start", "earliest", "--count", "5"))
    published = events[0].pop("published_at")
    assert published.endswith("Z") and published.startswith("20")
    assert events[0] == {
        "stream": "ticker",
        "seq": 1,
        "kind": "data",
        "key": "IBM",
        "payload": "one",
        "attrs": {"loc": "NY", "at": "2026-01-02T03:04:05Z"},
        "region": "r0",
    }
    assert [event["payload"] for event in events[1:]] == ["two", {"hex": "ff00"}, "four", "five"]
    (collected,) = told(tidings(url, "collect", "ticker", "--where", "loc = 'LA'", "--json"))
    assert collected == {"stream": "ticker", "lo": 6, "hi": 7}
    (why,) = told(tidings(url, "why", "ticker", "2", "--json"))
    assert why.pop("by") in (6, None)  # as long as that is known
    assert why == {"stream": "ticker", "seq": 2, "state": "collected", "source": "cluster"}
    where = ("--where", "loc = 'NY'", "--count", "1", "-o", "text")
    assert tidings(url, "sub", "ticker", "--start", "1", *where).stdout.startswith(b"ticker 1 data IBM one loc=NY at=")


def test_sub_prints_streams_in_one_order(url: str) -> None:
    with sync.connect(url) as t:
        for stream in ("east", "west"):
            t.create_stream(stream, attrs="n int")
        for at in range(8):
            t.publish(("east", "west")[at % 2], payload=b"%d" % at, attrs={"n": at})
    total = ("sub", "west", "east", "--order", "total", "--start")
    events = told(tidings(url, *total, "earliest", "--count", "8", "--patience", "20"))
    assert [(event["stream"], event["payload"]) for event in events] == [
        (("east", "west")[at % 2], str(at)) for at in range(8)
    ]
    ticks = [event["tick"] for event in events]
    assert ticks == sorted(set(ticks))
    later = told(tidings(url, *total, str(ticks[5]), "--count", "3"))
    assert later == events[5:], "it begins at a tick"
    durable = (*total, "earliest", "--name", "printer", "--where", "n <> 2", "--count")
    assert [event["payload"] for event in told(tidings(url, *durable, "3"))] == ["0", "1", "3"]
    assert [event["payload"] for event in told(tidings(url, *durable, "4"))] == ["4", "5", "6", "7"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["pub", "nothing", "x"], 1, "stream 'nothing' is unknown"),
        (["sub", "s0", "--where", "colour = 1"], 1, "filter, line 1, column 1 at 'colour'"),
        (["sub", "s0", "--patience", "3"], 1, "patience is for order='total'"),
        (["sub", "s0", "--order", "total", "--patience", "0"], 2, "--patience"),
        (["collect", "s0"], 2, "give either --where SQL or --before SEQ"),
        (["sub", "s0", "--start", "soon"], 2, "is neither earliest nor latest"),
        (["pub", "s0", "x", "--attrs", "{"], 1, "--attrs is no JSON object"),
    ],
)
def test_a_command_that_cannot_do_it_says_why_with_its_exit_code(
    url: str, arguments: list[str], code: int, text: str
) -> None:
    result = tidings(url, *arguments)
    assert result.returncode == code
    assert text in " ".join(result.stderr.decode().replace("│", " ").split())
