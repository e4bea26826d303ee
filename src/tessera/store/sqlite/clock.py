"""The clock of the processes on one file: the machine's, never allowed to go back, and the way back from one
that was far ahead.

What can go wrong: the machine's clock was a year ahead for one call. Its mark stands in the file, and if
time only waited for the machine to catch up, nothing would fall due for a year: no retry, no lapse. So only
a small step is waited out. Beyond it time goes on from the mark, at the pace of the monotonic clock, so that
every span (a lease, a delay) is right and no instant comes twice; what is due at an instant comes too early.
An operator who has looked at the machine's clock then sets the file's back (``set_back``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

STEP_MS: Final = 60_000
"""A step back that is waited out; a greater one is a clock that was wrong, or is."""

MARK: Final = """
SELECT clock
FROM tessera_meta
WHERE id = 1
"""
SET_MARK: Final = """
UPDATE tessera_meta
SET clock = :now
WHERE id = 1
"""
# What was reckoned from the mark moves with it: else a lease of half a minute would last a year. Instants
# that a caller named cannot be told from spans in a job that was never tried; those stay. Each statement
# walks its table once: this is done once in the life of a file, by hand.
MOVED_ALONG: Final = (
    """
    UPDATE tessera_job
    SET lease_until = lease_until - :lead,
        claimed_at = min(claimed_at, :now)
    WHERE state = 4
    """,
    """
    UPDATE tessera_job
    SET due = :now
    WHERE (state = 2 OR state = 3) AND due > :now
    """,
    """
    UPDATE tessera_job
    SET due = max(:now, due - :lead)
    WHERE state = 1 AND attempt > 0 AND due > :mark
    """,
    """
    UPDATE tessera_job
    SET expires_at = max(:now, expires_at - :lead),
        created_at = :now
    WHERE created_at > :now AND expires_at > 0
    """,
    """
    UPDATE tessera_done
    SET gone_at = max(:now, gone_at - :lead)
    WHERE finished_at > :now AND gone_at > 0
    """,
    """
    UPDATE tessera_slot
    SET expires_at = max(:now, expires_at - :lead)
    WHERE expires_at > :mark
    """,
    """
    UPDATE tessera_counter
    SET level_at = min(level_at, :now),
        closed_until = CASE WHEN closed_until > :mark THEN closed_until - :lead ELSE closed_until END,
        wake_at = CASE WHEN wake_at > :now THEN :now ELSE wake_at END
    """,
    """
    UPDATE tessera_record
    SET expires_at = expires_at - :lead
    WHERE expires_at > :mark
    """,
)


class Clock:
    """The time of this process on this file. Any thread may ask.

    ``monotonic`` gives seconds that only grow. Without it time stands still for as long as ``read`` is
    behind, however far.

    >>> machine = [1_000_000]
    >>> clock = Clock(lambda: machine[0])
    >>> clock.now()
    1000000
    >>> machine[0] -= 5
    >>> clock.now()
    1000000
    """

    def __init__(self, read: Callable[[], int], monotonic: Callable[[], float] | None = None) -> None:
        self._read = read
        self._monotonic = monotonic
        self._latest = 0
        self._left: tuple[int, float] | None = None
        """Where time goes on from, and the monotonic clock then."""

    def now(self) -> int:
        """This instant in milliseconds; never before one that was given or stored."""
        self._latest = latest = self._after(self._latest)
        return latest

    def follow(self, mark: int) -> int:
        """The same, and not before the mark that the file holds.

        A time far ahead that the file does not hold counts no more: it was set back, or nothing was stored
        then.
        """
        read = self._read()
        if self._monotonic is not None and mark - read <= STEP_MS < self._latest - read:
            self._latest, self._left = mark, None
        self._latest = latest = self._after(max(self._latest, mark))
        return latest

    def machine(self) -> int:
        """What the machine's clock says."""
        return self._read()

    def _after(self, floor: int) -> int:
        read = self._read()
        if floor - read <= STEP_MS or self._monotonic is None:
            self._left = None
            return max(floor, read)
        left = self._left
        if left is None:
            left = self._left = floor, self._monotonic()
        return max(floor, left[0] + int((self._monotonic() - left[1]) * 1_000))


def set_back(connection: sqlite3.Connection, machine: int) -> int:
    """Set the file's mark back to the machine's clock, and with it what was reckoned from it, in one
    transaction. By how many milliseconds; 0 if the mark is no more than a small step ahead.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        (mark,) = connection.execute(MARK).fetchone()
        lead = int(mark) - machine
        if lead > STEP_MS:
            at = {"now": machine, "mark": mark, "lead": lead}
            for statement in (SET_MARK, *MOVED_ALONG):
                connection.execute(statement, at)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return lead if lead > STEP_MS else 0
