"""What the parts of one handle work with: the driver of its colour, where the tables lie, what the process
remembers, and who is to be woken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tessera.model.ids import JobId
from tessera.store.postgres.driver import Driver, Query, quoted
from tessera.store.postgres.memory import Memory
from tessera.store.postgres.signals import Signals
from tessera.store.working import Net, wakes_somebody

NOTIFY: Final = "SELECT pg_notify($1, '')"


class Site:
    """See the module."""

    def __init__(
        self, driver: Driver, name: str, memory: Memory, signals: Signals, *, is_joined: bool = False
    ) -> None:
        self.driver = driver
        self.name = name
        """Of the schema, as the catalog has it."""
        self.schema = quoted(name)
        """As SQL writes it."""
        self.memory = memory
        self.signals = signals
        self.is_joined = is_joined
        """Whether it works in a transaction of the application's."""

    def query(self, text: str, *parameters: Any) -> Query:
        """A statement over the tables of this schema."""
        return text.replace("{s}", self.schema), parameters

    def ringing(self, net: Net) -> list[Query]:
        """The notification that a write brings with it. Of many within a moment only the first does."""
        if not _concerns_others(net):
            return []
        return [(NOTIFY, [self.signals.channel])] if self.signals.may_notify() else []

    def ringing_inside(self, net: Net) -> list[Query]:
        """The same inside the application's transaction: it is delivered with its commit, once."""
        return [(NOTIFY, [self.signals.channel])] if _concerns_others(net) else []

    def wrote(self, net: Net, revs: dict[JobId, int], ringing: Sequence[Query]) -> None:
        """A net state was committed, with this notification. Without one the thread of the signals sends one
        at the end of the moment: not before the commit, or it would wake somebody for nothing.
        """
        self.memory.wrote(net, revs)
        if _concerns_others(net):
            self.signals.bell.ring()  # this process need not wait for its own word
            if not ringing:
                self.signals.owe()

    async def ask(self, text: str, *parameters: Any) -> Sequence[tuple[Any, ...]]:
        """The rows of one question."""
        [found] = await self.driver.flight([self.query(text, *parameters)])
        return found


def _concerns_others(net: Net) -> bool:
    """Whether somebody may have something to do now: a worker, or who waits for a result."""
    return wakes_somebody(net) or bool(net.shifts)
