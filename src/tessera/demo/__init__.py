"""``tessera demo``: real work on the files of a folder, with nothing but a worker and an embedded store."""

from __future__ import annotations

from tessera.demo.run import main

__all__ = ["main"]
