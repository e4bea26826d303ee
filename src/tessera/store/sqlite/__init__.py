"""The SQLite store: one file, one writer at a time, many processes. Only ``connect`` imports it, for a
sqlite URL.

``store`` the verbs · ``file`` what the handles of one process share · ``driver`` threads and event loops ·
``writer`` transactions · ``source`` and ``writes`` rows for the one evaluator · ``readers``, ``reads`` and
``finding`` questions · ``joined`` the caller's transaction · ``migrations`` and ``schema/`` tables ·
``rows`` columns · ``connection`` settings and errors · ``ballast`` and ``filesystem`` the disk.
"""

from __future__ import annotations

from tessera.store.sqlite.file import SqliteFile
from tessera.store.sqlite.store import SqliteStore

__all__ = ["SqliteFile", "SqliteStore"]
