"""What a handler says while it runs: progress, log lines, output. Kept here until a renewal or the finish
carries it.

Nothing here waits, so that a handler may say anything at any rate: only the latest progress and output and
the last lines go out. Each snapshot is complete, so that a lost one is mended by the next.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Final

from tessera import seam
from tessera.model.job import Extras, Progress

LOG_LINES: Final = 200
LINE_LIMIT: Final = 2_000
"""Characters of one line; a longer one is cut."""


class Report:
    """The words of one attempt. Callable from any thread."""

    __slots__ = ("_lines", "_lock", "_output", "_progress", "_sent", "_version")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._output = b""
        self._progress: Progress | None = None
        self._version = 0
        self._sent = 0

    @property
    def has_news(self) -> bool:
        """Whether something was said since the last snapshot that arrived."""
        return self._version != self._sent

    def progress(self, current: float, total: float, message: str) -> None:
        """Replace the progress."""
        progress = Progress(current, total, _cut(message), seam.now_ms())
        with self._lock:
            self._progress = progress
            self._version += 1

    def output(self, data: bytes) -> None:
        """Replace the output."""
        with self._lock:
            self._output = data
            self._version += 1

    def line(self, text: str) -> None:
        """Add a line to the log."""
        with self._lock:
            self._lines.append(_cut(text))
            self._version += 1

    def snapshot(self) -> tuple[int, Extras]:
        """All that was said so far, under a number that ``arrived`` takes."""
        with self._lock:
            return self._version, Extras(progress=self._progress, output=self._output, log=tuple(self._lines))

    def arrived(self, version: int) -> None:
        """The store has this snapshot."""
        with self._lock:
            self._sent = max(self._sent, version)


class JobLog:
    """``ctx.log``: lines that stay with the attempt, with the levels and the %-formatting of ``logging``.

    >>> report = Report()
    >>> JobLog(report).info("read %d pages", 3)
    >>> report.snapshot()[1].log[0].endswith(" INFO read 3 pages")
    True
    """

    __slots__ = ("_report",)

    def __init__(self, report: Report) -> None:
        self._report = report

    def debug(self, message: str, *args: object) -> None:
        """Add a line of level DEBUG."""
        self.log(logging.DEBUG, message, *args)

    def info(self, message: str, *args: object) -> None:
        """Add a line of level INFO."""
        self.log(logging.INFO, message, *args)

    def warning(self, message: str, *args: object) -> None:
        """Add a line of level WARNING."""
        self.log(logging.WARNING, message, *args)

    def error(self, message: str, *args: object) -> None:
        """Add a line of level ERROR."""
        self.log(logging.ERROR, message, *args)

    def log(self, level: int, message: str, *args: object) -> None:
        """Add a line of any level of ``logging``. A format that does not fit its arguments is written as it
        stands."""
        try:
            text = message % args if args else message
        except (TypeError, ValueError, KeyError):
            text = f"{message} {args!r}"
        self._report.line(f"{clock_text(seam.now_ms())} {logging.getLevelName(level)} {text}")


def clock_text(ms: int) -> str:
    """Hours, minutes, seconds and milliseconds, UTC.

    >>> clock_text(3_723_004)
    '01:02:03.004'
    """
    seconds, ms = divmod(ms, 1_000)
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60 % 24:02}:{minutes % 60:02}:{seconds:02}.{ms:03}"


def clean(text: str) -> str:
    r"""The text with lone surrogates replaced: no encoding can store them.

    >>> clean("a\ud800b")
    'a?b'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _cut(text: str) -> str:
    return clean(text if len(text) <= LINE_LIMIT else text[: LINE_LIMIT - 5] + "[...]")
