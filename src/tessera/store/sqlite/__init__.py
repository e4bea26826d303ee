"""The SQLite store: one file, one writer at a time, many processes. Only ``connect`` imports it, and only for a sqlite URL.

``store`` holds the verbs · ``file`` what the handles of one process share · ``driver`` threads and event loops · ``source`` and
``writes`` rows for the one evaluator · ``reads`` and ``finding`` questions · ``joined`` the caller's transaction ·
``migrations`` and ``schema/`` tables · ``connection`` settings and errors · ``ballast`` and ``filesystem`` the disk.
"""
