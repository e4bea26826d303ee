"""What every command begins with: the options that all share, the settings they lead to, and the application
behind them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import click

from tessera.app import Tessera
from tessera.config import DEFAULT, Settings, load, shown_url
from tessera.doors.cli.failing import NobodyToAsk
from tessera.doors.cli.output import Output
from tessera.model.errors import ConfigError, TesseraError
from tessera.store.protocol import Store

T = TypeVar("T")
_SHARED: Final = ("url", "app", "config")


class Door:
    """What one call of the command line works with. ``app`` is given by tests that bring their own store."""

    def __init__(
        self,
        app: Tessera | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.given: dict[str, Any] = {}
        """Shared options as given; those after the command win over those before it."""
        self.as_json = False
        self._environment = os.environ if environ is None else environ
        self._directory = directory
        self._brought = app
        self._made: list[Tessera] = []

    @cached_property
    def out(self) -> Output:
        """Where to print."""
        return Output(as_json=self.as_json)

    @property
    def directory(self) -> Path:
        """Where the search for tessera.toml begins."""
        return Path.cwd() if self._directory is None else self._directory

    def arguments(self, **more: object) -> dict[str, object]:
        """What the command line says of settings."""
        return {**{name: value for name, value in self.given.items() if name != "config"}, **more}

    @cached_property
    def settings(self) -> Settings:
        """The settings. Raises ConfigError with all that is wrong."""
        return load(self.arguments(), **self.places)

    @property
    def places(self) -> dict[str, Any]:
        """Where settings are looked for, beside the arguments."""
        return {
            "environ": self._environment,
            "directory": self.directory,
            "file": self.given.get("config", ""),
        }

    def app(self, *, makes_store: bool = False) -> Tessera:
        """The application of the store meant, without its code unless the code is what names the store.

        A store that is not there is made by commands that bring something to it, and is a mistake for those
        that look at it: an empty store under a mistyped name would answer every question with nothing. Raises
        ConfigError.
        """
        if self._brought is not None:
            return self._brought
        settings = self.settings
        if settings.source("url") == DEFAULT and settings.app:
            app = self.code()
            url, source = app.url, settings.app
        else:
            app, url, source = self._keep(Tessera(settings.url)), settings.url, settings.source("url")
        if not makes_store and not self.is_there(url):
            raise ConfigError(
                [
                    (
                        f"{source}: url: there is no store at {shown_url(url)}; "
                        "name one with --url, TESSERA_URL or url in tessera.toml"
                    )
                ]
            )
        return app

    def code(self, reference: str = "") -> Tessera:
        """The application that MODULE:APP names, with its kinds; ``--url`` leads it to another store. Raises
        ConfigError."""
        reference = reference or self.settings.app
        if not reference:
            raise ConfigError(
                [
                    (
                        "app: this needs the application's code; "
                        "give --app MODULE:APP, TESSERA_APP or app in tessera.toml"
                    )
                ]
            )
        app = import_app(reference, self.directory)
        if self.given.get("url"):
            app.url = self.given["url"]
        return self._keep(app)

    def is_there(self, url: str) -> bool:
        """Whether the store's file exists. What is no file, no URL, or cannot be looked at is taken to be
        there: opening it tells."""
        try:
            parts = urlsplit(url)
            return parts.scheme != "sqlite" or Path(unquote(parts.path.removeprefix("/"))).exists()
        except (OSError, ValueError):
            return True

    def run(self, operation: Callable[[Store], Coroutine[Any, Any, T]], app: Tessera | None = None) -> T:
        """Run an operation of the engine on the store."""
        return (app or self.app())._run(operation)

    @property
    def by(self) -> str:
        """Whom the log names for what is done here."""
        environ = self._environment
        return f"cli:{environ.get('USER') or environ.get('LOGNAME') or 'unknown'}"

    @property
    def is_attended(self) -> bool:
        """Whether there is somebody to ask."""
        return sys.stdin.isatty()

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something that cannot be undone. Without a terminal to ask on, only ``--yes`` is an
        answer."""
        if yes:
            return
        if not self.is_attended:
            raise NobodyToAsk(f"{question} Nobody is there to ask; say --yes.")
        if not click.confirm(question, err=True):
            raise click.Abort

    def close(self) -> None:
        """Give up the stores that were opened here."""
        for app in self._made:
            app.close()

    def _keep(self, app: Tessera) -> Tessera:
        self._made.append(app)
        return app


def import_app(reference: str, directory: Path) -> Tessera:
    """The Tessera object that ``MODULE:APP`` names; modules of the directory are found first. Raises
    ConfigError."""
    module_name, colon, name = reference.partition(":")
    if not module_name or not colon or not name:
        raise ConfigError([f"app: {reference!r} is not of the form MODULE:APP{_meant(reference, directory)}"])
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    try:
        found: object = import_module(module_name)
    except ModuleNotFoundError as error:
        if hint := _meant(reference, directory):
            raise ConfigError([f"app: there is no module {module_name!r}{hint}"]) from error
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken(reference, error) from error
        raise ConfigError(
            [f"app: there is no module {error.name!r} in {directory} or on the path"]
        ) from error
    except TesseraError:
        raise
    except Exception as error:
        # Whatever the user's module raises while it is imported.
        raise _broken(reference, error) from error
    for part in name.split("."):
        if not hasattr(found, part):
            hint = _meant(module_name, directory) if part == name else ""
            raise ConfigError([f"app: {module_name!r} has no {name!r}{hint}"])
        found = getattr(found, part)
    if not isinstance(found, Tessera):
        raise ConfigError([f"app: {reference} is a {type(found).__name__}, not a Tessera"])
    return found


_MAKES_APP: Final = re.compile(r"^(\w+)[ \t]*(?::[^=\n]+)?=[ \t]*(?:\w+\.)*Tessera\(", re.MULTILINE)


def _meant(reference: str, directory: Path) -> str:
    """A hint for who names the file or the module alone: its text is read, not run, for the name of its
    Tessera. Empty if there is nothing to propose."""
    place, _, name = reference.partition(":")
    module = place.removesuffix(".py").strip("./").replace("/", ".")
    below = module.replace(".", "/")
    for file in (directory / f"{below}.py", directory / below / "__init__.py"):
        with suppress(OSError, ValueError):
            names: list[str] = _MAKES_APP.findall(file.read_text(encoding="utf-8", errors="replace"))
            meant = f"{module}:{name if name in names else names[0] if names else name or 'app'}"
            return "" if meant == reference else f"; did you mean {meant}?"
    return ""


def _broken(reference: str, error: Exception) -> ConfigError:
    """An import that failed inside the user's code: the innermost place is what he has to look at."""
    import traceback

    place = traceback.extract_tb(error.__traceback__)[-1]
    return ConfigError(
        [
            (
                f"app: {reference} cannot be imported: {type(error).__name__}: {error} "
                f"({place.filename}:{place.lineno})"
            )
        ]
    )


# Options that every command has -----------------------------------------------------------------------------


def common_options() -> list[click.Parameter]:
    """``--url``, ``--app``, ``--config`` and ``--json``: the same before a command and after it."""
    helps = {
        "url": "The store. Else TESSERA_URL, else tessera.toml, else sqlite:///tessera.db.",
        "app": "The application, where its code is needed. Else TESSERA_APP, else tessera.toml.",
        "config": "Read this file instead of the nearest tessera.toml.",
    }
    shapes = {"url": "URL", "app": "MODULE:APP", "config": "FILE"}
    return [
        *(
            click.Option(
                [f"--{name}"], metavar=shapes[name], help=helps[name], expose_value=False, callback=_note
            )
            for name in _SHARED
        ),
        click.Option(
            ["--json"], is_flag=True, help="Print JSON on stdout.", expose_value=False, callback=_note
        ),
    ]


def _note(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:  # noqa: ANN401  as click has it
    door = ctx.ensure_object(Door)
    if parameter.name == "json":
        door.as_json = door.as_json or bool(value)
    elif value is not None and parameter.name is not None:
        door.given[parameter.name] = value


class Verb(click.Command):
    """A command at the end of a branch: it takes the common options and closes what it opened."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params.extend(common_options())

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  as click has it
        try:
            return super().invoke(ctx)
        finally:
            ctx.ensure_object(Door).close()


class Noun(click.Group):
    """A group whose commands are verbs."""

    command_class: type[click.Command] | None = Verb

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params.extend(common_options())


pass_door = click.make_pass_decorator(Door, ensure=True)
YES = click.option("--yes", is_flag=True, help="Do not ask.")
