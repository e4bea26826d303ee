"""How a command ends: one table from errors to exit statuses, and the words that go with them.

The statuses are part of the public face: scripts branch on them.
"""

from __future__ import annotations

import logging
import traceback
from typing import Final

import click
import msgspec

from tessera.doors.cli.output import printable
from tessera.model.errors import ConfigError, NotFound, StoreBusy, StoreFull, StoreUnavailable, TesseraError

DONE: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
STORE: Final = 4
SETTINGS: Final = 5
INTERRUPTED: Final = 130

STATUSES: Final[tuple[tuple[type[TesseraError], int], ...]] = (
    (NotFound, NOT_FOUND),
    (StoreUnavailable, STORE),
    (StoreBusy, STORE),
    (StoreFull, STORE),
    (ConfigError, SETTINGS),
    (TesseraError, REFUSED),
)
"""The first class that fits decides."""


class NobodyToAsk(click.UsageError):
    """A question that has no terminal to be asked on. The command was called rightly otherwise."""


def exit_status(error: BaseException, *, as_json: bool) -> int:
    """Say what went wrong on stderr and name the exit status. A foreign exception, which is a mistake of
    ours, comes with its traceback."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else REFUSED
    if isinstance(error, KeyboardInterrupt | click.Abort):
        _tell("interrupted", "interrupted", as_json)
        return INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return USAGE
    if isinstance(error, click.UsageError):
        _tell("usage", error.format_message(), as_json)
        if error.ctx is not None and not as_json and not isinstance(error, NobodyToAsk):
            click.echo(error.ctx.get_usage(), err=True)
        return USAGE
    if isinstance(error, click.ClickException):
        _tell("error", error.format_message(), as_json)
        return REFUSED
    if isinstance(error, TesseraError):
        tell(error, as_json=as_json)
        return status_of(error)
    if not isinstance(error, Exception):
        raise error
    logging.getLogger("tessera.cli").debug("", exc_info=error)
    _tell("internal", "".join(traceback.format_exception(error)), as_json)
    return REFUSED


def status_of(error: TesseraError) -> int:
    """The exit status that stands for a typed error."""
    return next(status for kind, status in STATUSES if isinstance(error, kind))


def tell(error: TesseraError, *, as_json: bool) -> None:
    """The words of a typed error, on stderr."""
    _tell(error.code, str(error), as_json)


def _tell(code: str, message: str, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"error": {"code": code, "message": message}}), err=True)
    else:
        click.echo(f"error: {printable(message, lines=True)} [{code}]", err=True)
