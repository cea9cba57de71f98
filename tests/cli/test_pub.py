"""`tidings pub`: lines go out as they come, large ones too, and an error says what is published."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidings import sync
from tidings.cli import stdin_lines as lines
from tidings.cli.pub import Publishing
from tidings.cli.sub import line_of
from tidings.client.errors import Full, NotPublished, PublishFailed
from tidings.client.events import Ack
from tidings.core.errors import BadAttribute, BadInput, TidingsError

COMMAND = [sys.executable, "-c", "from tidings.cli.app import main; main()", "pub"]
MEGABYTE = 1_000_000
NUMBERS = itertools.count()


@pytest.fixture
def stream(url: str) -> str:
    """A new one."""
    name = f"s-{next(NUMBERS)}"
    with sync.connect(url) as t:
        t.create_stream(name, attrs="price double, count int")
    return name


def pub(url: str, *arguments: str | bytes, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    env = os.environ | {"TIDINGS_URL": url, "COLUMNS": "120"}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, check=False, input=stdin, env=env, timeout=60)


@contextmanager
def publishing(url: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, with a stdin that stays open."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*COMMAND, *arguments], env=os.environ | {"TIDINGS_URL": url}, bufsize=0, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def write(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


def failed(result: subprocess.CompletedProcess[bytes]) -> str:
    """The one line of an error."""
    assert result.returncode == 1 and result.stdout == b""
    assert result.stderr.startswith(b"tidings: ") and result.stderr.count(b"\n") == 1
    return result.stderr.decode()


# --- what it says ---------------------------------------------------------------------------------------------


def test_a_person_is_told_the_number_of_an_event(url: str, stream: str) -> None:
    assert pub(url, stream, "hello").stdout == f"{stream}: number 1\n".encode()
    assert pub(url, stream, "-", stdin=b"a\nb\n").stdout == f"{stream}: numbers 2 to 3\n".encode()
    assert json.loads(pub(url, stream, "hello", "--json").stdout) == {"stream": stream, "lo": 4, "hi": 5}


@pytest.mark.parametrize(
    "attrs",
    [
        *[{"price": "abc"}, {"count": 2.5}, {"count": 1 << 40}, {"count": True}, {"colour": 1}],
        *[{"at": "yesterday"}, {"at": 5}, {"day": "2026-13-01"}, {"raw": "xyz"}],
    ],
)
def test_a_wrong_attribute_has_the_message_of_the_api(url: str, attrs: dict[str, Any]) -> None:
    with sync.connect(url) as t:
        t.create_stream("declared", attrs="price double, count int, at timestamp, day date, raw binary")
        with pytest.raises(BadAttribute) as told:
            t.publish("declared", attrs=attrs)
    assert failed(pub(url, "declared", "--attrs", json.dumps(attrs), "x")) == f"tidings: {told.value}\n"


def test_a_timestamp_without_a_zone_has_the_message_of_the_api(url: str) -> None:
    with sync.connect(url) as t:
        t.create_stream("timed", attrs="at timestamp")
        with pytest.raises(BadAttribute) as told:
            t.publish("timed", attrs={"at": datetime(2026, 5, 4, 12)})
    attrs = '{"at": "2026-05-04T12:00:00"}'
    assert failed(pub(url, "timed", "--attrs", attrs, "x")) == f"tidings: {told.value}\n"


def test_attributes_that_json_writes_as_text_are_read(url: str) -> None:
    with sync.connect(url) as t:
        t.create_stream("texts", attrs="at timestamp, day date, raw binary, price double")
        attrs = {"at": "2026-05-04T14:00:00+02:00", "day": "2026-05-04", "raw": "00ff", "price": None}
        assert pub(url, "texts", "--attrs", json.dumps(attrs), "x").returncode == 0
        with t.subscribe("texts", start="earliest") as sub:
            event = sub.next(20)
    noon = datetime(2026, 5, 4, 12, tzinfo=UTC)
    assert event.attrs == {"at": noon, "day": date(2026, 5, 4), "raw": b"\x00\xff", "price": None}
    assert line_of(event, text=True).endswith(f" x at={noon} day=2026-05-04 raw={event.attrs['raw']}\n")


# --- as they come -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "line"), [("-", b"%d\n"), ("--from-json", b'{"payload": "%d"}\n')])
def test_a_line_is_published_while_the_next_is_awaited(url: str, stream: str, form: str, line: bytes) -> None:
    with sync.connect(url) as t, t.subscribe(stream) as sub, publishing(url, stream, form) as process:
        for number in range(3):
            write(process, line % number)
            assert sub.next(20).payload == b"%d" % number
        code, out, err = ended(process)
    assert (code, err) == (0, b"") and out == b"%s: numbers 1 to 3\n" % stream.encode()


def test_an_interrupt_tells_what_is_published(url: str, stream: str) -> None:
    with sync.connect(url) as t, t.subscribe(stream) as sub, publishing(url, stream, "-") as process:
        write(process, b"one\ntwo\nhalf a li")
        assert [sub.next(20).payload for _ in range(2)] == [b"one", b"two"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr is not None
        said = process.stderr.read().decode()
    assert said == f"tidings: stopped after line 2; 2 events are published, numbers 1 to 2 of {stream}\n"


def test_a_line_without_an_end_is_one_and_an_empty_one_too(url: str, stream: str) -> None:
    assert pub(url, stream, "-", stdin=b"a\r\n\nb").stdout == b"%s: numbers 1 to 3\n" % stream.encode()
    with sync.connect(url) as t, t.subscribe(stream, start="earliest") as sub:
        assert [sub.next(20).payload for _ in range(3)] == [b"a", b"", b"b"]


def test_where_there_is_no_line_nothing_is_published(url: str, stream: str) -> None:
    assert "stdin has no event" in failed(pub(url, stream, "-"))
    assert "stdin has no event" in failed(pub(url, stream, "--from-json", stdin=b"\n  \n"))


def test_lines_are_read_whole_whatever_comes_at_once() -> None:
    get, put = os.pipe()
    found = lines.whole_lines(get)
    os.write(put, b"one\ntw")
    assert next(found) == [b"one"]
    os.write(put, b"o")
    os.write(put, b"\n\nthree\n")
    assert next(found) == [b"two", b"", b"three"]
    os.write(put, b"rest")
    os.close(put)
    assert list(found) == [[b"rest"]]
    os.close(get)


def test_a_line_that_does_not_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST", 1 << 20)
    with open("/dev/zero", "rb") as zeros, pytest.raises(BadInput, match="line 1 has more than 1048576 bytes"):
        list(lines.whole_lines(zeros.fileno()))


# --- much, and what goes wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "line"), [("-", b"%s\n"), ("--from-json", b'{"payload": "%s"}\n')])
def test_more_than_may_be_pending_is_published(url: str, stream: str, form: str, line: bytes) -> None:
    result = pub(url, stream, form, "--json", stdin=(line % (b"x" * MEGABYTE)) * 80)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"stream": stream, "lo": 1, "hi": 81}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"attrs": 5}', "line 3, attrs: '5' is no JSON object"),
        (b'{"attrs": [1]}', "line 3, attrs: '[1]' is no JSON object"),
        (b'{"payload": "\xff"}', "line 3 is no JSON object: 'utf-8' codec can't decode"),
        (b'{"attrs": {"price": "abc"}}', "attribute 'price' is declared double, not str ('abc')"),
        (
            b'{"attrs": {"count": 99999999999999999999999}}',
            "attribute 'count' is declared int; 99999999999999999999999 does not fit",
        ),
        (b'{"attrs": {"colour": 1}}', "attribute 'colour' is not declared"),
        (b'{"payload": "%s"}' % (b"x" * 2 * MEGABYTE), "key, payload and attributes of 2000000 bytes"),
    ],
)
def test_a_line_that_is_refused_ends_it_with_what_is_published(url: str, stream: str, line: bytes, why: str) -> None:
    good = b'{"payload": "x", "attrs": {"price": 1, "count": 2}}\n'
    said = failed(pub(url, stream, "--from-json", stdin=good * 2 + line + b"\n" + good))
    assert why in said
    assert said.endswith(f"stopped at line 3: 2 events are published, numbers 1 to 2 of {stream}\n")
    with sync.connect(url) as t:
        assert t.stream(stream).horizon == 3


def test_bytes_that_are_no_text_pass_through(url: str, stream: str) -> None:
    assert pub(url, stream, "--key", b"k\xff", b"p\xfe\n").returncode == 0
    with sync.connect(url) as t, t.subscribe(stream, start="earliest") as sub:
        event = sub.next(20)
    assert (event.key, event.payload) == (b"k\xff", b"p\xfe\n")
    assert "--attrs is no JSON object" in failed(pub(url, stream, "--attrs", b'{"loc": "\xff"}', "x"))


class Stub:
    """A connection that takes a few events at a time, and loses those of one flush."""

    def __init__(self, room: int, loses: int | None = None) -> None:
        self.room = self.free = room
        self.loses = loses
        self.flushes = 0
        self.drained = 0
        self.posted = 0
        self.seq = 1

    async def stream(self, name: str) -> Any:
        return SimpleNamespace(attrs="")

    def post(self, stream: str, **event: Any) -> None:
        if not self.free:
            raise Full("await drain() and post this one again")
        self.free -= 1
        self.posted += 1

    async def drain(self) -> None:
        self.drained += not self.free
        self.free = self.room

    async def flush(self) -> list[Ack]:
        count, self.posted = self.posted, 0
        if not count:
            return []
        self.free = self.room
        self.flushes += 1
        if self.flushes == self.loses:
            raise PublishFailed("`failed` has them", [NotPublished("s", count, "the stream is deleted", False)])
        self.seq += count
        return [Ack("s", self.seq - count, self.seq)]


def plain(line: bytes, number: int) -> tuple[bytes | None, bytes, dict[str, Any] | None]:
    return None, line, None


def test_what_does_not_fit_is_posted_again_when_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"x\n" * 100)
    stub: Any = Stub(room=7)
    with open(tmp_path / "lines", "rb") as file:
        result = asyncio.run(Publishing(stub, "s", plain).run(file.fileno()))
    assert result == {"stream": "s", "lo": 1, "hi": 101}
    assert stub.drained == 14


def test_events_that_are_lost_on_the_way_are_told_with_those_that_are_not(tmp_path: Path) -> None:
    async def main() -> str:
        get, put = os.pipe()
        stub: Any = Stub(room=100, loses=2)
        running = asyncio.ensure_future(Publishing(stub, "s", plain).run(get))
        os.write(put, b"a\nb\n")
        while stub.flushes < 1:  # a pause: what is there is acknowledged
            await asyncio.sleep(0.001)
        os.write(put, b"c\n")
        with pytest.raises(TidingsError) as caught:
            await asyncio.wait_for(running, 20)
        os.close(put)
        os.close(get)
        return str(caught.value)

    said = asyncio.run(main())
    assert said == (
        "the stream is deleted; stopped at line 3: 2 events are published, numbers 1 to 2 of s; "
        "1 more may be published or not"
    )
