"""What a worker is told: checked once, all problems together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tessera.model.errors import ConfigError, InvalidArgument
from tessera.model.showing import shown
from tessera.rules.names import validate_queue

Mode = Literal["weighted", "strict"]

_LEAST_SECONDS = {
    "lease_seconds": 0.2,
    "grace_seconds": 0.0,
    "cancel_grace_seconds": 0.0,
    "claim_watchdog_seconds": 0.05,
    "hang_seconds": 0.05,
    "lag_seconds": 0.05,
    "sweep_seconds": 0.01,
    "ready_seconds": 0.1,
}


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """How a worker works. Raises ConfigError, which lists every problem.

    >>> WorkerSettings(queues={"critical": 6, "low": 1}).weights
    {'critical': 6.0, 'low': 1.0}
    >>> WorkerSettings(concurrency=0, lease_seconds=0)
    Traceback (most recent call last):
    ...
    tessera.model.errors.ConfigError: settings are wrong:
      - concurrency: is 0; it is a whole number from 1 to 10000
      - lease_seconds: is 0; it is a number of seconds, at least 0.2
    """

    queues: Mapping[str, float] | Sequence[str] = ("default",)
    """Names, or names with weights; with ``strict`` a list, the first drained before the second."""
    mode: Mode = "weighted"
    concurrency: int = 10
    """Handlers running at once."""
    lease_seconds: float = 30
    prefetch: int | None = None
    """Jobs claimed beyond the free slots; None = adaptive, at most a second of work; 0 = none."""
    grace_seconds: float = 30
    """How long a stop waits for handlers that run."""
    cancel_grace_seconds: float = 5
    """From being asked to stop to being killed (processes) or given up (threads, coroutines that go on)."""
    claim_watchdog_seconds: float = 60
    """No successful claim for so long is an error in the log, and the worker says it is unhealthy."""
    hang_seconds: float = 10
    """A handler that goes on for so long after it was asked to stop is logged with its stack."""
    lag_seconds: float = 2
    """An event loop that does not turn for so long is logged with its stack."""
    sweep_seconds: float = 1
    ready_seconds: float = 30
    """Most time a child process takes to start."""
    ends_process: bool = False
    """The process ends right after ``run()``: threads that did not stop are then released instead of being
    left to lapse."""
    name: str = ""

    def __post_init__(self) -> None:
        problems = [*_queue_problems(self.queues, self.mode), *_count_problems(self)]
        for name, least in _LEAST_SECONDS.items():
            value = getattr(self, name)
            if not _is_number(value) or value < least:
                problems.append(f"{name}: is {shown(value)}; it is a number of seconds, at least {least:g}")
        if problems:
            raise ConfigError(problems)

    @property
    def weights(self) -> dict[str, float]:
        """The queues in the order given, each with its weight."""
        if isinstance(self.queues, Mapping):
            return {queue: float(weight) for queue, weight in self.queues.items()}
        return dict.fromkeys(self.queues, 1.0)


def _queue_problems(queues: object, mode: object) -> list[str]:
    problems: list[str] = []
    if not isinstance(mode, str) or mode not in ("weighted", "strict"):
        problems.append(f"mode: is {shown(mode)}; it is 'weighted' or 'strict'")
    if isinstance(queues, str | bytes | bytearray | memoryview) or not isinstance(queues, Mapping | Sequence):
        return [*problems, f"queues: is {shown(queues)}; give a list of names, or names with weights"]
    if not queues:
        problems.append("queues: names no queue")
    for name in queues:
        try:
            validate_queue(name)
        except InvalidArgument as error:
            problems.append(f"queues: {shown(name)} {error.problem}")
    if isinstance(queues, Mapping):
        if mode == "strict":
            problems.append("queues: have weights, which strict order has no use for; give a list")
        for name, weight in queues.items():
            if not _is_number(weight) or weight <= 0:
                told = f"has the weight {shown(weight)}; it is a number above 0"
                problems.append(f"queues: {shown(name)} {told}")
    elif not problems and len(set(queues)) < len(queues):
        problems.append("queues: names one twice")
    return problems


def _count_problems(settings: WorkerSettings) -> list[str]:
    problems: list[str] = []
    if not _is_whole(settings.concurrency, 1, 10_000):
        told = shown(settings.concurrency)
        problems.append(f"concurrency: is {told}; it is a whole number from 1 to 10000")
    if settings.prefetch is not None and not _is_whole(settings.prefetch, 0, 10_000):
        told = shown(settings.prefetch)
        problems.append(f"prefetch: is {told}; it is None or a whole number from 0 to 10000")
    return problems


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
