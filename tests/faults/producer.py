"""A producer process of these tests: ``python -m tests.faults.producer '{"url": ..., ...}'``. SIGTERM ends
it after the job in hand."""

from __future__ import annotations

import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tessera import Handle, Tessera, TesseraError
from tests.faults import history, work

KEYS = 5
ORDERS = "CREATE TABLE IF NOT EXISTS orders (who TEXT, number INTEGER, PRIMARY KEY (who, number))"


class Plan(msgspec.Struct, frozen=True):
    """What the producer is told."""

    url: str
    who: str
    mix: dict[str, int]
    """Kinds and their weights."""
    rate: float = 20
    """Jobs a second; 0 = as fast as it can."""
    limit: int = 1_000_000
    longest_ms: int = 300
    seed: int = 0
    first: int = 0
    """Where its numbers begin."""
    ids: bool = False
    """Whether jobs carry ids of its own, ``who-number``."""
    joined: str = ""
    """A database file: each step is a transaction of the caller's on it, with an order and three jobs."""
    gate: str = ""
    """A file to wait for before the first use of the store."""


class Producer:
    """Enqueues by a plan until told to stop."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._stopping = False
        signal.signal(signal.SIGTERM, self._stop)
        self._app: Tessera = work.use(plan.url)

    def run(self) -> None:
        """Wait for the gate, then go."""
        plan = self._plan
        while plan.gate and not Path(plan.gate).exists():
            time.sleep(0.001)
        step = self._transactions() if plan.joined else self._single
        began = time.monotonic()
        for number in range(plan.first, plan.first + plan.limit):
            if self._stopping:
                break
            step(number)
            if plan.rate:
                time.sleep(max(0.0, began + (number - plan.first + 1) / plan.rate - time.monotonic()))
        self._app.close()

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _single(self, number: int) -> None:
        name = f"{self._plan.who}-{number}"
        history.mine().note("trying", key=name, number=number)
        try:
            handle = self._enqueue(number, {"id": name} if self._plan.ids else {})
        except TesseraError as error:
            history.mine().note("refused", key=name, how=type(error).__name__)
        else:
            history.mine().note("acked", job=handle_key(handle), key=name, number=number)

    def _enqueue(self, number: int, options: dict[str, object]) -> Handle[object]:
        draw, plan = self._random, self._plan
        [kind] = draw.choices(list(plan.mix), list(plan.mix.values()))
        ms = draw.randint(5, plan.longest_ms)
        arguments: dict[str, object] = {
            "stumble": {"ms": ms, "times": 1 + number % 2},
            "keyed": {"key": f"k{number % KEYS}", "ms": ms},
            "metered": {},
        }.get(kind, {"ms": ms})  # type: ignore[assignment]
        return self._app.kinds[kind].with_options(**options).enqueue(**arguments)  # type: ignore[arg-type]

    def _transactions(self) -> Callable[[int], None]:
        connection = sqlite3.connect(self._plan.joined, isolation_level=None, timeout=10)

        def step(number: int) -> None:
            who = self._plan.who
            history.mine().note("trying", key=f"{who}-{number}", number=number)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO orders VALUES (?, ?)", (who, number))
            for part in range(3):
                self._enqueue(number, {"id": f"{who}-{number}-{part}", "connection": connection})
            is_kept = number % 4 != 3
            connection.execute("COMMIT" if is_kept else "ROLLBACK")
            history.mine().note(
                "committed" if is_kept else "rolled_back", key=f"{who}-{number}", number=number
            )

        return step


def handle_key(handle: Handle[object]) -> str:
    """The printed key, whatever id the caller gave."""
    from tessera.model.ids import show_id

    return show_id(handle.key)


def main(argument: str) -> int:
    """Produce until the plan is fulfilled or SIGTERM comes."""
    Producer(msgspec.json.decode(argument, type=Plan)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
