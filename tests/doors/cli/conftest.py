"""The command line as a person or a program calls it, on a SQLite file of the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tessera import Handle, Tessera
from tessera.doors.cli.opening import Door
from tessera.doors.cli.tree import tree
from tessera.engine.claiming import Claimer
from tessera.engine.finishing import Finish, finish
from tessera.model.outcomes import Outcome
from tessera.store.protocol import Store


class Answer:
    """How one call ended."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"status {self.status}\n--- stdout\n{self.out}--- stderr\n{self.err}"

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error document on stderr, the last one there."""
        return json.loads(self.err.splitlines()[-1])["error"]

    @property
    def rows(self) -> list[list[str]]:
        """The cells of an aligned table, without its titles."""
        return [line.split() for line in self.out.splitlines()[1:]]


Run = Callable[..., Answer]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/work.db?synchronous=normal"


@pytest.fixture
def app(url: str) -> Iterator[Tessera]:
    """The application whose store the commands meet."""
    with Tessera(url) as app:
        yield app


@pytest.fixture
def bare(tmp_path: Path) -> Run:
    """Calls the command line with nothing but what the test says."""

    def run(*args: str, typed: str | None = None, **environ: str) -> Answer:
        door = Door(environ={"USER": "ada", **environ}, directory=tmp_path)
        result = CliRunner().invoke(tree, list(args), obj=door, input=typed)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def run(bare: Run, url: str, app: Tessera) -> Run:
    """Calls the command line on the test's store."""
    app.queues.list()  # opened, so that the file is there

    def call(*args: str, **more: Any) -> Answer:
        return bare("--url", url, *args, **more)

    return call


def end(app: Tessera, outcome: Outcome, *, queue: str = "default", times: int = 1) -> None:
    """Claim jobs of a queue as a worker would and end each attempt in the same way."""

    async def work(store: Store) -> None:
        claimer = Claimer(store, app._policies, holder="a-test", lease_ms=30_000, kinds=None)
        for _ in range(times):
            claimed = await claimer.claim([queue], 1, counted_limit=1)
            answers = await finish(store, [Finish(job, outcome) for job in claimed.jobs])
            assert answers == [None]

    app._run(work)


def claim(app: Tessera, queue: str = "default") -> None:
    """Claim one job of a queue and leave it running."""

    async def work(store: Store) -> None:
        claimer = Claimer(store, app._policies, holder="a-test", lease_ms=30_000, kinds=None)
        assert len((await claimer.claim([queue], 1, counted_limit=1)).jobs) == 1

    app._run(work)


@pytest.fixture
def greet(app: Tessera) -> Callable[..., Handle[Any]]:
    """Enqueues a job of the kind ``greet``; options go before the arguments."""

    @app.job
    def greet(name: str = "Ada") -> str:
        return f"Hello {name}"

    def enqueue(**options: Any) -> Handle[Any]:
        return greet.with_options(**options).enqueue()

    return enqueue
