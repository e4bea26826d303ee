"""What can be said of a job: the same names in ``@app.job``, ``with_options`` and on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final, Literal, TypedDict

from tessera.model.changes import After, Time
from tessera.model.control import Seconds, to_ms
from tessera.model.errors import InvalidArgument
from tessera.model.job import NEVER, Keep, Need, Terms, encode_terms
from tessera.model.policy import Ceiling as CeilingPolicy
from tessera.model.policy import CounterPolicy
from tessera.model.policy import Rate as RatePolicy
from tessera.model.states import EventLevel
from tessera.rules import names
from tessera.rules.uniqueness import value_at

END_OF_TIME_MS: Final = 253_402_300_800_000
"""The first instant of the year 10000."""


def whole(argument: str, value: object, least: int, most: int) -> int:
    """A whole number within bounds. Raises InvalidArgument."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(argument, f"is {value!r}; it is a whole number")
    if not least <= value <= most:
        raise InvalidArgument(argument, f"is {value}; it lies between {least} and {most}")
    return int(value)


def number(argument: str, value: object, least: float, most: float) -> None:
    """Refuse what is no number within bounds. Raises InvalidArgument."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidArgument(argument, f"is {value!r}; it lies between {least} and {most}")


def listed(option: str, value: Any) -> tuple[Any, ...]:  # noqa: ANN401  what users write is anything
    """What somebody gave as a list. Raises InvalidArgument."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidArgument(option, f"is {value!r}; give a list")
    return tuple(value)


def _are_texts(value: object) -> bool:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | Set):
        return False
    return all(isinstance(each, str) for each in value)


def _path(argument: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(argument, f"is of type {type(value).__name__}; it is the name of an argument")


def _units(argument: str, value: int | str) -> None:
    if not isinstance(value, str):
        whole(argument, value, 1, 1 << 31)


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often and how soon a failed job is tried again.

    The wait after n failures lies in [d (1 - jitter), d] with d = min(cap, base x factor^(n - 1)); ``delays``
    replaces that by a list whose last entry repeats. Spans are seconds or timedeltas. ``max_duration`` gives
    up so long after the first enqueue.

    >>> Retry(max_attempts=5, base=1, factor=3).max_attempts
    5
    """

    max_attempts: int = 25
    base: Seconds = 15
    factor: float = 2.0
    cap: Seconds = 3600
    jitter: float = 0.5
    delays: Sequence[Seconds] = ()
    max_duration: Seconds | None = None

    def __post_init__(self) -> None:
        whole("retry.max_attempts", self.max_attempts, 1, 1_000_000)
        number("retry.jitter", self.jitter, 0, 1)
        number("retry.factor", self.factor, 1, 100)
        listed("retry.delays", self.delays)
        self.fields()

    def fields(self) -> dict[str, Any]:
        """The terms of a job that this stands for."""
        return {
            "backoff_base_ms": to_ms(self.base, "retry.base"),
            "backoff_factor": float(self.factor),
            "backoff_cap_ms": to_ms(self.cap, "retry.cap"),
            "backoff_jitter": float(self.jitter),
            "backoff_delays_ms": tuple(to_ms(delay, "retry.delays") for delay in self.delays),
            "retry_for_ms": 0
            if self.max_duration is None
            else to_ms(self.max_duration, "retry.max_duration", least=1),
        }


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long a finished job is kept, by how it ended: a span, None for ever, 0 not at all.

    >>> Retention(completed=0).completed
    0
    """

    completed: Seconds | None = 86_400
    dead: Seconds | None = None
    cancelled: Seconds | None = 86_400

    def __post_init__(self) -> None:
        self.keep()

    def keep(self) -> Keep:
        """The stored form."""
        spans = {"completed": self.completed, "dead": self.dead, "cancelled": self.cancelled}
        return Keep(
            **{k: NEVER if span is None else to_ms(span, f"retention.{k}") for k, span in spans.items()}
        )


@dataclass(frozen=True, kw_only=True)
class Unique:
    """At most one live job per key. The key is the kind and the named arguments, or all of them.

    Enqueueing a second one answers with the first one's handle, ``created`` False. The key is free again when
    the job ends; ``while_dead`` keeps it for a dead one too. ``across_kinds`` leaves the kind out of the key.

    >>> Unique(by=["account_id"]).by
    ['account_id']
    """

    by: Sequence[str] = ()
    across_kinds: bool = False
    while_dead: bool = False

    def __post_init__(self) -> None:
        if not _are_texts(self.by):
            raise InvalidArgument("unique.by", f"is {self.by!r}; give a list of argument names")


@dataclass(frozen=True)
class Ceiling:
    """At most ``limit`` units of ``name`` running at once, over the whole fleet; with ``by`` so many for each
    value of that argument.

    A limit of 0 lets nothing start. ``units`` is what one job takes: a number, or the path of an argument
    that says it.

    >>> Ceiling("account", 2, by="account_id").limit
    2
    """

    name: str
    limit: int
    by: str = ""
    units: int | str = 1

    def __post_init__(self) -> None:
        names.validate_counter_name(self.name)
        whole(f"ceilings[{self.name}].limit", self.limit, 0, 1 << 31)
        _units(f"ceilings[{self.name}].units", self.units)
        _path(f"ceilings[{self.name}].by", self.by)

    def policy(self) -> CounterPolicy:
        """The stored form."""
        return CeilingPolicy(self.limit)


@dataclass(frozen=True)
class Rate:
    """At most ``limit`` units of ``name`` started per span ``per``, over the whole fleet; with ``by`` for
    each value of that argument.

    A token bucket that holds ``burst`` units (default: ``limit``). With ``exact=True`` no window of that
    length ever sees more than ``limit`` starts, a burst included.

    >>> Rate("stripe", 100, per=1).per
    1
    """

    name: str
    limit: int
    per: Seconds = 1
    burst: int = 0
    exact: bool = False
    by: str = ""
    units: int | str = 1

    def __post_init__(self) -> None:
        names.validate_counter_name(self.name)
        where = f"rates[{self.name}]"
        whole(f"{where}.limit", self.limit, 0, 1_000_000)
        whole(f"{where}.burst", self.burst, 0, 1_000_000)
        _units(f"{where}.units", self.units)
        _path(f"{where}.by", self.by)
        if to_ms(self.per, f"{where}.per", least=1) > 31 * 86_400_000:
            raise InvalidArgument(f"{where}.per", "is over 31 days")
        if self.exact and self.burst > self.limit:
            raise InvalidArgument(
                f"{where}.burst", f"is {self.burst}; an exact rate of {self.limit} cannot burst above it"
            )

    def policy(self) -> CounterPolicy:
        """The stored form."""
        return RatePolicy(self.limit, to_ms(self.per, "per", least=1), self.burst, self.exact)


@dataclass(frozen=True, kw_only=True)
class Dependency:
    """A job to wait for, and what becomes of the waiting job if that one does not complete.

    ``job`` is a handle, a key or a caller's own id. ``on``: ``completed``, or ``ended`` for any end.
    ``otherwise``: ``cancel``, ``hold`` (until it is redriven and completes) or ``go``.
    """

    job: object
    on: Literal["completed", "ended"] = "completed"
    otherwise: Literal["cancel", "hold", "go"] = "cancel"

    def __post_init__(self) -> None:
        if self.on not in ("completed", "ended"):
            raise InvalidArgument("depends_on", f"on={self.on!r}; it is 'completed' or 'ended'")
        if self.otherwise not in ("cancel", "hold", "go"):
            raise InvalidArgument(
                "depends_on", f"otherwise={self.otherwise!r}; it is 'cancel', 'hold' or 'go'"
            )


class Options(TypedDict, total=False):
    """Everything that ``with_options`` takes; all of it may also stand in ``@app.job``, save what names one
    job.
    """

    queue: str
    priority: int
    delay: Seconds
    run_at: datetime
    id: str
    tags: Sequence[str]
    tenant: str
    cost: int
    unique: Unique | bool
    ceilings: Sequence[Ceiling]
    rates: Sequence[Rate]
    depends_on: Sequence[object]
    retry: Retry
    max_crashes: int
    timeout: Seconds
    deadline: Seconds | datetime
    expires: Seconds
    retention: Retention | Seconds
    events: Literal["full", "odd", "off"]
    pending: bool
    connection: object


ONE_JOB_ONLY: Final = frozenset({"id", "run_at", "depends_on", "connection"})
"""Options that make no sense for all jobs of a kind."""


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Validated options. Whatever is wrong is named by its option."""

    queue: str = "default"
    priority: int = 0
    due: Time = After(0)
    given_id: str = ""
    tags: tuple[str, ...] = ()
    tenant: str = ""
    cost: int = 1
    unique: Unique | None = None
    ceilings: tuple[Ceiling, ...] = ()
    rates: tuple[Rate, ...] = ()
    depends_on: tuple[Dependency, ...] = ()
    retry: Retry = Retry()
    max_crashes: int = 3
    timeout_ms: int = 0
    deadline: Time = 0
    expires_ms: int = 0
    retention: Retention = Retention()
    events: EventLevel | None = None
    pending: bool = False
    connection: object = None

    def with_options(self, options: Mapping[str, Any]) -> JobOptions:
        """These options with others laid over them. Raises InvalidArgument; an unknown name is answered with
        the nearest.
        """
        fields: dict[str, Any] = {}
        for name, value in options.items():
            read = _READERS.get(name)
            if read is None:
                raise InvalidArgument(name, f"is no option{_nearest(name)}")
            fields |= read(value)
        if "delay" in options and "run_at" in options:
            raise InvalidArgument("run_at", "cannot be given together with delay")
        return replace(self, **fields)

    @cached_property
    def body(self) -> bytes:
        """The terms that are frozen into the job: one encoding for all jobs with these options."""
        return encode_terms(Terms(timeout_ms=self.timeout_ms, **self.retry.fields()))

    @cached_property
    def keep(self) -> Keep:
        """The retention, as stored."""
        return self.retention.keep()

    def needs(self, arguments: Mapping[str, Any]) -> tuple[Need, ...]:
        """The counters that a job with these arguments takes units of."""
        return tuple(_need(counter, arguments) for counter in self.counters)

    def counter_policies(self) -> dict[str, CounterPolicy]:
        """The policies that these options declare, by counter name."""
        return {names.validate_counter_name(counter.name): counter.policy() for counter in self.counters}

    @property
    def counters(self) -> tuple[Ceiling | Rate, ...]:
        """Ceilings and rates alike."""
        return (*self.ceilings, *self.rates)


def _need(counter: Ceiling | Rate, arguments: Mapping[str, Any]) -> Need:
    key = names.validate_counter_name(counter.name)
    if counter.by:
        value = str(value_at(arguments, counter.by, counter.name))
        names.refuse_nul(counter.name, value)
        if len(value) > names.MAX_COUNTER_VALUE:
            raise InvalidArgument(
                counter.name, f"the value of {counter.by!r} is over {names.MAX_COUNTER_VALUE} characters long"
            )
        key = f"{counter.name}/{value}"
    units = (
        counter.units if isinstance(counter.units, int) else value_at(arguments, counter.units, counter.name)
    )
    need = Need(key, whole(counter.name, units, 1, 1 << 31))
    most = counter.limit if isinstance(counter, Ceiling) or not counter.burst else counter.burst
    if isinstance(counter, Rate) and counter.exact and not counter.burst:
        most = min(counter.limit, 1)
    if need.units > most > 0:
        raise InvalidArgument(
            counter.name, f"the job needs {need.units} units and the counter never has more than {most}"
        )
    return need


# Readers: one an option, from what users write to fields ----------------------------------------------------


def _queue(value: str) -> dict[str, Any]:
    return {"queue": names.validate_queue(value)}


def _priority(value: int) -> dict[str, Any]:
    return {"priority": whole("priority", value, -32_768, 32_767)}


def _delay(value: Seconds) -> dict[str, Any]:
    return {"due": After(to_ms(value, "delay"))}


def _run_at(value: datetime) -> dict[str, Any]:
    return {"due": instant("run_at", value)}


def _id(value: str) -> dict[str, Any]:
    return {"given_id": names.validate_given_id(value)}


def _tags(value: Sequence[str]) -> dict[str, Any]:
    return {"tags": names.validate_tags(listed("tags", value))}


def _tenant(value: str) -> dict[str, Any]:
    return {"tenant": names.validate_tenant(value)}


def _cost(value: int) -> dict[str, Any]:
    return {"cost": whole("cost", value, 1, 1_000_000)}


def _unique(value: Unique | bool | None) -> dict[str, Any]:
    if value is True:
        return {"unique": Unique()}
    if value in (False, None) or isinstance(value, Unique):
        return {"unique": value or None}
    raise InvalidArgument("unique", f"is {value!r}; give True or a Unique(...)")


def _ceilings(value: Sequence[Ceiling]) -> dict[str, Any]:
    return {"ceilings": _counters("ceilings", value, Ceiling)}


def _rates(value: Sequence[Rate]) -> dict[str, Any]:
    return {"rates": _counters("rates", value, Rate)}


def _counters(option: str, value: Sequence[Any], of: type) -> tuple[Any, ...]:
    counters = (value,) if isinstance(value, Ceiling | Rate) else listed(option, value)
    for counter in counters:
        if not isinstance(counter, of):
            raise InvalidArgument(option, f"holds {counter!r}; give {of.__name__}(...) values")
    if len({counter.name for counter in counters}) < len(counters):
        raise InvalidArgument(option, "names one counter twice")
    return counters


def _depends_on(value: Sequence[object]) -> dict[str, Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        value = [value]
    return {"depends_on": tuple(v if isinstance(v, Dependency) else Dependency(job=v) for v in value)}


def _retry(value: Retry) -> dict[str, Any]:
    if not isinstance(value, Retry):
        raise InvalidArgument("retry", f"is {value!r}; give a Retry(...)")
    return {"retry": value}


def _max_crashes(value: int) -> dict[str, Any]:
    return {"max_crashes": whole("max_crashes", value, 0, 1_000)}


def _timeout(value: Seconds) -> dict[str, Any]:
    return {"timeout_ms": to_ms(value, "timeout")}


def _deadline(value: Seconds | datetime) -> dict[str, Any]:
    if isinstance(value, datetime):
        return {"deadline": instant("deadline", value)}
    return {"deadline": After(to_ms(value, "deadline", least=1))}


def _expires(value: Seconds) -> dict[str, Any]:
    return {"expires_ms": to_ms(value, "expires", least=1)}


def _retention(value: Retention | Seconds) -> dict[str, Any]:
    return {
        "retention": value if isinstance(value, Retention) else Retention(completed=value, cancelled=value)
    }


def _events(value: str) -> dict[str, Any]:
    return {"events": event_level(value)}


def event_level(value: str) -> EventLevel:
    """How much is logged. Raises InvalidArgument."""
    try:
        return EventLevel(value)
    except ValueError:
        raise InvalidArgument("events", f"is {value!r}; it is 'full', 'odd' or 'off'") from None


def _pending(value: bool) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise InvalidArgument("pending", f"is {value!r}; it is True or False")
    return {"pending": value}


def _connection(value: object) -> dict[str, Any]:
    return {"connection": value}


_READERS: Final[dict[str, Callable[[Any], dict[str, Any]]]] = {
    "queue": _queue,
    "priority": _priority,
    "delay": _delay,
    "run_at": _run_at,
    "id": _id,
    "tags": _tags,
    "tenant": _tenant,
    "cost": _cost,
    "unique": _unique,
    "ceilings": _ceilings,
    "rates": _rates,
    "depends_on": _depends_on,
    "retry": _retry,
    "max_crashes": _max_crashes,
    "timeout": _timeout,
    "deadline": _deadline,
    "expires": _expires,
    "retention": _retention,
    "events": _events,
    "pending": _pending,
    "connection": _connection,
}


def _nearest(name: str) -> str:
    near = get_close_matches(name, _READERS, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(sorted(_READERS))}"


def instant(argument: str, value: datetime) -> int:
    """Milliseconds since the epoch of an aware datetime. Raises InvalidArgument."""
    if not isinstance(value, datetime):
        raise InvalidArgument(argument, f"is {value!r}; give an aware datetime")
    if value.tzinfo is None:
        raise InvalidArgument(argument, "is a naive datetime; say which time zone, e.g. datetime.now(UTC)")
    ms = round(value.timestamp() * 1_000)
    if ms >= END_OF_TIME_MS:
        # Rounded, or in UTC, it lies in the year 10000: no datetime could show it again.
        raise InvalidArgument(argument, f"is {value}; the last year there is is 9999, in UTC")
    return ms
