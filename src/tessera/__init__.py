"""Tessera: one queue for Python applications and for AI agents."""

from typing import TYPE_CHECKING

from tessera._version import __version__
from tessera.app import Tessera
from tessera.handle import Handle
from tessera.kinds import JobKind, Request
from tessera.model.control import Abort, Cancel, Discard, RateLimited, RetryAfter, Snooze
from tessera.model.errors import TesseraError
from tessera.model.states import State
from tessera.model.views import JobView
from tessera.options import Ceiling, Dependency, Rate, Retention, Retry, Unique

if TYPE_CHECKING:
    from tessera.worker import ChildResult, Context, Worker, WorkerSettings

__all__ = [
    "Abort",
    "Cancel",
    "Ceiling",
    "ChildResult",
    "Context",
    "Dependency",
    "Discard",
    "Handle",
    "JobKind",
    "JobView",
    "Rate",
    "RateLimited",
    "Request",
    "Retention",
    "Retry",
    "RetryAfter",
    "Snooze",
    "State",
    "Tessera",
    "TesseraError",
    "Unique",
    "Worker",
    "WorkerSettings",
    "__version__",
]

_OF_THE_WORKER = frozenset({"ChildResult", "Context", "Worker", "WorkerSettings"})


def __getattr__(name: str) -> object:
    """Names of the worker are loaded when they are asked for: a producer never pays for an event loop."""
    if name in _OF_THE_WORKER:
        from tessera import worker

        return vars(worker)[name]
    raise AttributeError(f"module 'tessera' has no attribute {name!r}")
