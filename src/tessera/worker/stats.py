"""What a worker counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class WorkerStats:
    """Numbers of one worker since its start. Written by its event loop; read them from anywhere."""

    claimed: int = 0
    started: int = 0
    ended: int = 0
    """Attempts whose handler is through."""
    finished: int = 0
    """Ends that were written, give-backs apart."""
    given_back: int = 0
    stale: int = 0
    """Ends that the store refused, for the lease was over: another holder may have run the job again."""
    fenced: int = 0
    """Attempts stopped since their lease was lost or about to end; nothing of them was written."""
    unwritten: int = 0
    """Ends that could not be written before their lease was over."""
    adopted: int = 0
    """Jobs found after the reply of their claim was lost."""
    abandoned: int = 0
    """Handlers that went on after the worker's end."""
