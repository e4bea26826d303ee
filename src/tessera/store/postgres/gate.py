"""The gate: a row that one transaction at a time holds, and with it all counters and passes.

Whoever holds it first folds in what the others wrote down about counters since. Row locks on the counters
themselves, in claims and finishes, cost half the throughput of one process and three quarters of two.
"""

from __future__ import annotations

from typing import Final

from tessera.model.changes import Shift
from tessera.store.postgres.driver import Rows
from tessera.store.postgres.loads import GATE, Loader
from tessera.store.working import Working

# All that is committed: who waits for the gate sees, with the next statement, what came meanwhile.
FOLD: Final = """
WITH taken AS (
    DELETE FROM {s}.counter_shift RETURNING key, used, blocked, awake, refund, close_until
)
SELECT key, sum(used)::bigint, sum(blocked)::bigint, sum(awake)::bigint, sum(refund)::bigint, max(close_until)
FROM taken
GROUP BY key
ORDER BY key
"""


class Shifts:
    """Moves of counters that were folded in a transaction, to be applied to each evaluation in it."""

    def __init__(self) -> None:
        self.by_key: dict[str, Shift] = {}

    def take(self, found: Rows) -> None:
        """Rows of ``FOLD``."""
        self.by_key = {row[0]: Shift(*row[1:]) for row in found}

    def apply(self, work: Working) -> None:
        """Move the counters. Whoever has room then is woken when the working set is settled."""
        for key, shift in self.by_key.items():
            work.shift(key, shift)


def pass_through(loader: Loader) -> Shifts:
    """Take the gate with the next flight, and what stands to be folded."""
    shifts = Shifts()
    loader.ask(GATE, ["claim"], lambda _: None)
    loader.ask(FOLD, [], shifts.take)
    return shifts
