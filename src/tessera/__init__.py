"""Tessera: one queue for Python applications and for AI agents."""

from tessera._version import __version__
from tessera.app import Tessera
from tessera.handle import Handle
from tessera.kinds import JobKind, Request
from tessera.model.control import Abort, Cancel, Discard, RateLimited, RetryAfter, Snooze
from tessera.model.errors import TesseraError
from tessera.model.states import State
from tessera.model.views import JobView
from tessera.options import Ceiling, Dependency, Rate, Retention, Retry, Unique

__all__ = [
    "Abort",
    "Cancel",
    "Ceiling",
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
    "__version__",
]
