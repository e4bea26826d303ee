"""The log of ``tessera worker``: lines for people, or JSON lines that say job, kind and attempt."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Final

import msgspec

_OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object a line: at, level, logger, message, what the code gave as ``extra``, and error for a
    traceback."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "at": _instant(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = record.stack_info
        return msgspec.json.encode(entry, enc_hook=str).decode()


class TextLines(logging.Formatter):
    """One line for people, the job at its end, a traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        extra = _extra(record)
        about = f" [{' '.join(f'{name}={value}' for name, value in extra.items())}]" if extra else ""
        start = f"{_instant(record):%Y-%m-%d %H:%M:%S} {record.levelname:<7} {record.name}"
        text = f"{start}: {record.getMessage()}{about}"
        below = [self.formatException(record.exc_info)] if record.exc_info else []
        return "\n".join([text, *below, *([record.stack_info] if record.stack_info else [])])


def configure(level: str, form: str) -> None:
    """Let everything at or above the level go to stderr, in one of the two forms. Code that configures later
    adds to it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    # Its own debug lines ("Using selector") are about no job.
    logging.getLogger("asyncio").setLevel(max(logging.INFO, root.level))


def _instant(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
