"""Options of the format "tidings": names and meanings as in Spark's Kafka source, checked before anything is read.

A name that is not an option, or one that makes no sense here, is an error that says which was meant.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias

import msgspec

from tidings.client.url import SCHEME, parse_url
from tidings.core.errors import BadInput
from tidings.core.ids import FIRST, StreamId
from tidings.protocols.services.leases import BYTES

Offsets: TypeAlias = str | dict[StreamId, int | str]
"""earliest, latest, or for each stream a number or one of the two."""

EARLIEST, LATEST = "earliest", "latest"
CONNECT = ("servers", "cluster", "token", "tlsCa", "tlsCert", "tlsKey", "timeoutSeconds")
READ = (
    *CONNECT,
    *("subscribe", "subscribePattern", "startingOffsets", "endingOffsets", "maxOffsetsPerTrigger", "minPartitions"),
    *("failOnDataLoss", "filter", "leaseSeconds", "leaseBytes", "archive", "attributes", "withTick"),
)
TIMEOUT = 120.0  # seconds without progress before a task fails; ours: several times what a fail-over takes
LEASE_SECONDS = 900.0  # ours: longer than the restart of a driver takes, or an executor to start
BATCH_SECONDS = 120.0  # of a batch read once tasks run: longer than between two of them; ours, a region has few leases


def known(options: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Options under their proper names, whatever their case; an unknown one is an error that suggests another."""
    proper = {name.lower(): name for name in names}
    found: dict[str, str] = {}
    for given, value in options.items():
        name = proper.get(given.lower())
        if name is None:
            near = get_close_matches(given.lower(), list(proper), n=1)
            hint = f"did you mean {proper[near[0]]!r}?" if near else f"there are {', '.join(sorted(proper.values()))}"
            raise BadInput(f"option {given!r} of format tidings is unknown: {hint}")
        found[name] = value
    return found


class ConnectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the cluster is reached, from the driver and from every task."""

    servers: str
    cluster: str = "tidings"
    token: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    timeout: float = TIMEOUT

    @classmethod
    def values(cls, given: Mapping[str, str]) -> dict[str, Any]:
        """What the options say, as arguments; raises `BadInput`."""
        servers = given.get("servers", "")
        if not servers:
            raise BadInput("option 'servers' is missing: where the cluster is, such as 127.0.0.1:7400")
        url = servers if servers.startswith(SCHEME) else SCHEME + servers
        parse_url(url)
        values: dict[str, Any] = {"servers": url, "cluster": given.get("cluster", "tidings")}
        values |= {"token": given.get("token", ""), "tls_ca": given.get("tlsCa", "")}
        values |= {"tls_cert": given.get("tlsCert", ""), "tls_key": given.get("tlsKey", "")}
        return values | {"timeout": _positive(given, "timeoutSeconds", TIMEOUT)}

    def connecting(self) -> dict[str, Any]:
        """Arguments for `tidings.sync.connect`."""
        tls = None
        if self.tls_ca or self.tls_cert:
            tls = ssl.create_default_context(cafile=self.tls_ca or None)
            if self.tls_cert:
                tls.load_cert_chain(self.tls_cert, self.tls_key or None)
        return {"token": self.token, "cluster": self.cluster, "tls": tls, "timeout": self.timeout}


class ReadOptions(ConnectOptions, frozen=True, kw_only=True):
    """What is read, from where to where."""

    subscribe: tuple[StreamId, ...] = ()
    pattern: str = ""
    starting: Offsets | None = None
    ending: Offsets = LATEST
    max_offsets: int | None = None
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    filter: str = ""
    lease_seconds: float = LEASE_SECONDS
    batch_seconds: float = BATCH_SECONDS
    lease_bytes: int = BYTES
    archive: dict[StreamId, int] | None = None
    json: bool = False  # attributes as one column of JSON: the columns are the same whatever the streams declare
    tick: bool = False  # a column that orders events of different streams

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
        """Check what a user wrote; raises `BadInput`."""
        given = known(options, READ)
        if streaming and "endingOffsets" in given:
            raise BadInput("option 'endingOffsets' is for batch reads: a streaming query ends when it is stopped")
        if streaming is False and "maxOffsetsPerTrigger" in given:
            raise BadInput("option 'maxOffsetsPerTrigger' is for streaming queries: a batch read has 'endingOffsets'")
        ending = _offsets(given, "endingOffsets")
        if ending == EARLIEST or (isinstance(ending, dict) and EARLIEST in ending.values()):
            raise BadInput("option 'endingOffsets': a range does not end at 'earliest'; it is 'latest' or numbers")
        return cls(
            **cls.values(given),
            **_streams(given),
            starting=_offsets(given, "startingOffsets"),
            ending=ending or LATEST,
            max_offsets=_count(given, "maxOffsetsPerTrigger"),
            min_partitions=_count(given, "minPartitions") or 1,
            fail_on_data_loss=flag(given, "failOnDataLoss", default=True),
            filter=given.get("filter", ""),
            lease_seconds=_positive(given, "leaseSeconds", LEASE_SECONDS),
            batch_seconds=_positive(given, "leaseSeconds", BATCH_SECONDS),
            lease_bytes=_count(given, "leaseBytes") or BYTES,
            archive=_archive(given, streaming),
            json=_attributes(given),
            tick=_tick(given),
        )


def _archive(given: Mapping[str, str], streaming: bool | None) -> dict[StreamId, int] | None:
    """Collected rows too, with what they collect and come from, and what is covered: for streaming queries.

    Says of streams as of which number a lease keeps their rows: they are wanted as of that, later ones as published.
    """
    if "archive" not in given:
        return None
    if streaming is False or "filter" in given:
        raise BadInput("option 'archive' is for streaming queries without a filter: it is what a lake is made from")
    try:
        return msgspec.json.decode(given["archive"], type=dict[str, int])
    except msgspec.DecodeError as error:
        said = given["archive"]
        raise BadInput(f"option 'archive' is JSON such as {{\"prices\": 1}}, not {said!r}: {error}") from None


def _attributes(given: Mapping[str, str]) -> bool:
    """Whether attributes come as JSON rather than in a column each."""
    how = given.get("attributes", "columns").lower()
    if how not in ("columns", "json"):
        raise BadInput(f"option 'attributes' is 'columns' or 'json', not {given['attributes']!r}")
    if how == "json" and "filter" in given:
        raise BadInput("option 'attributes' is 'columns' where there is a filter: give one of the two")
    return how == "json"


def _tick(given: Mapping[str, str]) -> bool:
    """Whether there is a column of ticks; an archive has one under another name."""
    wanted = flag(given, "withTick", default=False)
    if wanted and "archive" in given:
        raise BadInput("option 'withTick' does not go with 'archive', which has the column _tick")
    return wanted


def _streams(given: Mapping[str, str]) -> dict[str, Any]:
    if ("subscribe" in given) == ("subscribePattern" in given):
        raise BadInput("give one of the options 'subscribe' (streams, separated by commas) and 'subscribePattern'")
    if "subscribePattern" in given:
        pattern = given["subscribePattern"]
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadInput(f"option 'subscribePattern': {pattern!r} is no regular expression: {error}") from None
        return {"pattern": pattern or ".*"}
    names = tuple(dict.fromkeys([name.strip() for name in given["subscribe"].split(",") if name.strip()]))
    if not names:
        raise BadInput("option 'subscribe' names no stream")
    return {"subscribe": names}


def _offsets(given: Mapping[str, str], name: str) -> Offsets | None:
    text = given.get(name)
    if text is None:
        return None
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    wrong = BadInput(
        f"option {name!r} is 'earliest', 'latest' or JSON such as "
        f'{{"prices": 17}} with numbers from {FIRST} on, not {text!r}'
    )
    try:
        offsets = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(offsets, dict) or not offsets:
        raise wrong
    for at in offsets.values():
        if at not in (EARLIEST, LATEST) and not (type(at) is int and at >= FIRST):
            raise wrong
    return offsets


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise BadInput(f"option {name!r} is a whole number from 1 on, not {text!r}")
    return int(text)


def _positive(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1e9:
        raise BadInput(f"option {name!r} is a number of seconds, not {text!r}")
    return value


def flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """The value of an option that is true or false."""
    text = given.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise BadInput(f"option {name!r} is 'true' or 'false', not {text!r}")
    return text.lower() == "true"
