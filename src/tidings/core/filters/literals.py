"""Literals as Spark reads them: strings with their escapes, days of the calendar, instants with their zone."""

from __future__ import annotations

import re

import numpy as np

DATE = re.compile(r"(?P<day>\d{4}-\d{2}-\d{2})", re.ASCII)
TIMESTAMP = re.compile(
    r"(?P<day>\d{4}-\d{2}-\d{2})[ T](?P<time>([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6})?)?)"
    r" ?(?P<zone>Z|UTC|[+-]\d{2}:\d{2})",
    re.ASCII,
)
_FIRST_DAY, _LAST_DAY = "0001-01-01", "9999-12-31"


def days(day: str) -> int:
    """Days since 1970; `ValueError` for a day that is not on the calendar."""
    if day < _FIRST_DAY:
        raise ValueError(day)
    return int(np.datetime64(day, "D").astype(np.int64))


def instant(found: re.Match[str]) -> int:
    """Microseconds since 1970."""
    clock = [*found["time"].split(":"), "0"]
    seconds, _, fraction = clock[2].partition(".")
    micros = (int(clock[0]) * 3600 + int(clock[1]) * 60 + int(seconds)) * 1_000_000 + int(fraction.ljust(6, "0"))
    zone, offset = found["zone"], 0
    if zone[0] in "+-":
        hours, minutes = int(zone[1:3]), int(zone[4:6])
        if hours * 60 + minutes > 18 * 60 or minutes > 59:
            raise ValueError(zone)
        offset = (hours * 60 + minutes) * 60_000_000 * (-1 if zone[0] == "-" else 1)
    moment = days(found["day"]) * 86_400_000_000 + micros - offset
    if not days(_FIRST_DAY) <= moment // 86_400_000_000 <= days(_LAST_DAY):
        raise ValueError(found[0])
    return moment


_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|(.))|('')|(\"\")", re.DOTALL)


def unescape(body: str, quote: str) -> str:
    """The value of a string literal between its quotes, as Spark's parser reads it."""

    def value(found: re.Match[str]) -> str:
        short, long, octal, other, single, double = found.groups()
        if single or double:
            pair = single or double
            return pair[0] if pair[0] == quote else pair
        if short or long:
            return chr(int(short or long, 16))
        return chr(int(octal, 8)) if octal else _ESCAPES.get(other, other)

    text = _ESCAPED.sub(value, body)
    return text.encode("utf-16", "surrogatepass").decode("utf-16")  # \\ud83d\\ude00 is one character
