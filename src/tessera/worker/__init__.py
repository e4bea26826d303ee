"""The worker: claims jobs, runs their handlers, keeps their leases meanwhile and writes how they ended.

One job's way through it: ``fetcher`` claims, ``slots`` starts, ``executor`` runs and names the outcome,
``completer`` writes it. Beside them, on a thread and a store handle of their own so that no handler can stop
them: ``renewer`` and ``upkeep``.
"""

from tessera.worker.context import ChildResult, Context
from tessera.worker.handlers import Handler
from tessera.worker.settings import WorkerSettings
from tessera.worker.signals import run_until_signalled
from tessera.worker.worker import Worker

__all__ = ["ChildResult", "Context", "Handler", "Worker", "WorkerSettings", "run_until_signalled"]
