"""Structured logs: one JSON object per line in a file, or text for a person at a terminal."""

from __future__ import annotations

import logging
import logging.handlers
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import structlog


def configure(path: Path | None, **context: Any) -> None:
    """Send everything that is logged in this process to a file, or to stderr; ``context`` goes into every line."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _with(context),
    ]
    plain = path is None and sys.stderr.isatty()
    last: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if plain
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    )
    handler: logging.Handler = logging.StreamHandler()
    if path is not None:
        handler = logging.handlers.WatchedFileHandler(path, encoding="utf-8")  # log rotation may move it away
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in root.handlers:
        old.close()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # that it starts and stops is no news
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # loggers are made at import, before this is called
    )


def _with(context: dict[str, Any]) -> structlog.typing.Processor:
    def add(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for key, value in context.items():
            event.setdefault(key, value)
        return event

    return add
