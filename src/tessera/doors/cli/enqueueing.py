"""``tessera enqueue``: store a job, with or without the application's code."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import click
import msgspec

from tessera.app import Tessera
from tessera.doors.cli.opening import Door, Verb, pass_door
from tessera.doors.cli.shapes import INSTANT, SPAN, SPAN_OR_INSTANT, TAGS, listed, read_span_or_instant
from tessera.doors.stored_kind import stored_kind
from tessera.engine import enqueueing
from tessera.handle import Handle
from tessera.kinds import JobKind, Request
from tessera.model.errors import InvalidArgument
from tessera.model.states import EventLevel
from tessera.options import Ceiling, Dependency, Rate, Retention, Retry, Unique
from tessera.rules import names
from tessera.rules.jsonform import Misfit, write_plain
from tessera.rules.payload import check_payload_size

T = TypeVar("T")
_FIELDS: Final = "FIELD=VALUE,..."


@click.command(cls=Verb)
@click.argument("kind", metavar="KIND")
@click.argument("values", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--args", "arguments", metavar="JSON", help="All arguments as one JSON object, instead of NAME=VALUE."
)
@click.option("--queue", help="Else the kind's own.")
@click.option("--priority", type=int, help="-32768 to 32767, higher first.")
@click.option("--delay", type=SPAN, help="Due so long from now.")
@click.option("--run-at", type=INSTANT, help="Due then.")
@click.option("--id", help="An id of your own; a repeat with the same content is answered with the same job.")
@click.option("--tags", type=TAGS, multiple=True, metavar="TAG,...", help="May be repeated.")
@click.option("--tenant", help="Whose share of the queue it is.")
@click.option("--cost", type=int, help="How much of the tenant's share it takes.")
@click.option(
    "--unique",
    metavar=f"true|{_FIELDS}",
    help="One live job per key, e.g. true, or by=account_id,while_dead=true.",
)
@click.option(
    "--ceilings",
    multiple=True,
    metavar=_FIELDS,
    help="E.g. name=account,limit=2,by=account_id; may be repeated.",
)
@click.option(
    "--rates", multiple=True, metavar=_FIELDS, help="E.g. name=stripe,limit=100,per=1; may be repeated."
)
@click.option(
    "--depends-on",
    multiple=True,
    metavar=f"JOB|{_FIELDS}",
    help="E.g. JOB, or job=JOB,on=ended; may be repeated.",
)
@click.option("--retry", metavar=_FIELDS, help="E.g. max_attempts=5,base=1,factor=3.")
@click.option("--max-crashes", type=int, help="Crashes until it is quarantined.")
@click.option("--timeout", type=SPAN, help="Longest attempt; 0 = no limit.")
@click.option("--deadline", type=SPAN_OR_INSTANT, help="Not to be finished later, over all attempts.")
@click.option("--expires", type=SPAN, help="Not to be started later than so long from now.")
@click.option(
    "--retention",
    metavar=f"SPAN|{_FIELDS}",
    help="How long it is kept when it has ended, e.g. 7d, or dead=30d.",
)
@click.option(
    "--events", type=click.Choice([str(level) for level in EventLevel]), help="How much of it is logged."
)
@click.option("--pending/--no-pending", default=None, help="Hold it until it is promoted.")
@click.option("--wait", type=SPAN, help="Wait so long for its result and print it.")
@pass_door
def enqueue(
    door: Door, /, kind: str, values: Sequence[str], arguments: str | None, wait: float | None, **options: Any
) -> None:
    """Store a job of a kind.

    With --app the arguments are checked against the handler's parameters. Without it they are stored as
    given, and the kind's defaults are those its workers have declared in the store. A VALUE that is JSON is
    taken as that, any other as text.
    """
    code = _code(door)
    app = code or door.app(makes_store=True)
    known, warning = (_with_code(code, kind), "") if code is not None else _without_code(door, app, kind)
    bound = known.with_options(**_given(options))
    request = Request(known, _payload(known, values, arguments), bound._options)
    stored = door.run(lambda store: enqueueing.enqueue(store, app._policies, request.draft(store)), app)
    if warning:
        door.out.warn(warning)
    handle = Handle(app, stored.id, given_id=request.options.given_id, created=stored.created, kind=known)
    document: dict[str, object] = {
        "id": handle.id,
        "created": handle.created,
        "kind": kind,
        "queue": request.options.queue,
    }
    if wait is not None:
        document["result"] = handle.result(wait)
    if door.as_json:
        door.out.document(document)
        return
    if not handle.created:
        door.out.note("it was there already")
    door.out.result(None, handle.id if wait is None else msgspec.json.encode(document["result"]).decode())


def _code(door: Door) -> Tessera | None:
    return door.code() if door.settings.app else None


def _with_code(app: Tessera, kind: str) -> JobKind[Any]:
    if kind not in app.kinds:
        near = get_close_matches(kind, app.kinds, n=1)
        hint = (
            f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(app.kinds)) or 'none'}"
        )
        raise InvalidArgument("kind", f"the application has no {kind!r}; {hint}")
    return app.kinds[kind]


def _without_code(door: Door, app: Tessera, kind: str) -> tuple[JobKind[Any], str]:
    """The kind, and what may be wrong with it."""
    policy = door.run(app._policies.reread, app)
    known = stored_kind(app, kind, policy)
    if kind in policy.kinds:
        return known, ""
    near = get_close_matches(kind, policy.kinds, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return known, f"no worker has declared the kind {kind!r} in this store yet{hint}"


# Arguments --------------------------------------------------------------------------------------------------


def _payload(kind: JobKind[Any], values: Sequence[str], arguments: str | None) -> bytes:
    if arguments is not None and values:
        raise click.UsageError("Give either --args or NAME=VALUE, not both.")
    if arguments is not None:
        return check_payload_size(kind.signature.check(names.refuse_nul("args", arguments).encode()))
    texts = dict(_pair(value) for value in values)
    if len(texts) < len(values):
        raise click.UsageError("One argument is given twice.")
    given = {name: _json_or_text(text) for name, text in texts.items()}
    while True:
        try:
            return check_payload_size(kind.signature.check(_written(given)))
        except InvalidArgument as error:
            # ``zip=01234`` is text and ``zip=12345`` reads as a number: what the handler wants as text is
            # given as text.
            name = error.argument
            if name not in texts or given[name] == texts[name]:
                raise
            given[name] = texts[name]


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"{text!r} is not of the form NAME=VALUE.")
    return name, value


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _written(given: Mapping[str, object]) -> bytes:
    for name in given:
        names.refuse_nul("NAME", name)
    try:
        return write_plain(given)
    except Misfit as misfit:
        raise InvalidArgument("NAME=VALUE", misfit.told) from misfit


def _no_number(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


# Options ----------------------------------------------------------------------------------------------------


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given, as ``with_options`` takes them."""
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    readers = {
        "tags": listed,
        "unique": _unique,
        "ceilings": lambda texts: [_built("ceilings", Ceiling, text) for text in texts],
        "rates": lambda texts: [_built("rates", Rate, text) for text in texts],
        "depends_on": lambda texts: [_dependency(text) for text in texts],
        "retry": lambda text: _built("retry", Retry, text),
        "retention": _retention,
    }
    return {name: readers[name](value) if name in readers else value for name, value in given.items()}


def _unique(text: str) -> Unique | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    fields = _fields("unique", text)
    if "by" in fields and isinstance(fields["by"], str):
        fields["by"] = fields["by"].split("+")
    return _make("unique", Unique, fields)


def _dependency(text: str) -> Dependency | str:
    return _built("depends_on", Dependency, text) if "=" in text else text


def _retention(text: str) -> Retention | float:
    if "=" not in text:
        span = _span(text)
        if not isinstance(span, float):
            raise InvalidArgument("retention", f"is {text!r}; give a span, or e.g. completed=1d,dead=never")
        return span
    return _make(
        "retention",
        Retention,
        {k: None if v == "never" else _span(v) for k, v in _fields("retention", text).items()},
    )


def _built(option: str, of: type[T], text: str) -> T:
    return _make(option, of, {name: _span(value) for name, value in _fields(option, text).items()})


def _make(option: str, of: type[T], fields: Mapping[str, object]) -> T:
    known = [field.name for field in dataclasses.fields(of)]  # type: ignore[arg-type]  # each of them is a dataclass
    for name in fields:
        if name not in known:
            raise InvalidArgument(option, f"has no field {name!r}; there are: {', '.join(known)}")
    try:
        return of(**fields)
    except TypeError as error:
        raise InvalidArgument(option, f"cannot be made of {dict(fields)}: {error}") from None


def _fields(option: str, text: str) -> dict[str, Any]:
    """``a=1,b=x`` or a JSON object."""
    if text.lstrip().startswith("{"):
        try:
            return dict(json.loads(text))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(option, f"is no JSON object: {error}") from None
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and equals for name, equals, _ in pairs):
        raise InvalidArgument(option, f"is {text!r}; give FIELD=VALUE,... or a JSON object")
    return {name.strip(): _json_or_text(value.strip()) for name, _, value in pairs}


def _span(value: object) -> object:
    """``5m`` is a span wherever it stands; what is none stays as it is, and is judged by whoever takes it."""
    if not isinstance(value, str) or not value[:1].isdigit():
        return value
    try:
        return read_span_or_instant(value)
    except ValueError:
        return value
