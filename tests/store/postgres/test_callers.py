"""The application's own transaction, whatever stands around its connection: a job is there if, and only if,
it was committed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tessera import Tessera
from tessera.model.errors import ForeignStore, InvalidArgument, NotInTransaction, Unsupported
from tessera.model.queries import Filter, Page
from tessera.model.states import State
from tessera.model.views import view
from tests.servers import schemas
from tests.servers.run import postgres_url

pytestmark = pytest.mark.capability("P3")


@pytest.fixture
def app() -> Iterator[Tessera]:
    with Tessera(schemas.real_url()) as app:

        @app.job
        async def note(text: str) -> None: ...

        app.declare()
        yield app


def by_alchemy(driver: str) -> str:
    return postgres_url().replace("postgresql://", f"postgresql+{driver}://")


async def texts(app: Tessera) -> list[str]:
    """What the jobs in the store were given."""
    found = (await (await app._astore()).find_jobs(Filter(), Page(limit=200))).jobs
    return sorted(view(job, reveal=True).payload["text"] for job in found)


def kept(app: Tessera) -> list[str]:
    """The same from blocking code."""
    return asyncio.run(texts(app))


def test_psycopg(app: Tessera):
    with psycopg.connect(postgres_url()) as connection:
        for text, end in (("kept", connection.commit), ("lost", connection.rollback)):
            app.kinds["note"].with_options(connection=connection).enqueue(text)
            end()
    assert kept(app) == ["kept"]


@pytest.mark.asyncio
async def test_psycopg_async(app: Tessera):
    async with await psycopg.AsyncConnection.connect(postgres_url()) as connection:
        for text, end in (("kept", connection.commit), ("lost", connection.rollback)):
            await app.kinds["note"].with_options(connection=connection).aenqueue(text)
            await end()
    assert await texts(app) == ["kept"]


@pytest.mark.asyncio
async def test_asyncpg(app: Tessera):
    connection = await asyncpg.connect(postgres_url())
    try:
        async with connection.transaction():
            await (
                app.kinds["note"]
                .with_options(connection=connection, unique=True, tags=["a"], tenant="t")
                .aenqueue("kept")
            )
        transaction = connection.transaction()
        await transaction.start()
        await app.aenqueue_many([app.kinds["note"].job("lost")], connection=connection)
        await transaction.rollback()
        with pytest.raises(NotInTransaction):
            await app.kinds["note"].with_options(connection=connection).aenqueue("no transaction")
    finally:
        await connection.close()
    assert await texts(app) == ["kept"]


def test_sqlalchemy_blocking(app: Tessera):
    engine = sqlalchemy.create_engine(by_alchemy("psycopg"))
    try:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("SELECT 1"))
            app.kinds["note"].with_options(connection=connection).enqueue("kept by a connection")
        with Session(engine) as session, session.begin():
            app.kinds["note"].with_options(connection=session).enqueue("kept by a session")
        with engine.connect() as connection:
            with pytest.raises(NotInTransaction):
                app.kinds["note"].with_options(connection=connection).enqueue("nothing was begun")
            with connection.begin() as transaction:
                app.kinds["note"].with_options(connection=connection).enqueue("lost")
                transaction.rollback()
    finally:
        engine.dispose()
    assert kept(app) == ["kept by a connection", "kept by a session"]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.asyncio
async def test_sqlalchemy_async(app: Tessera, driver: str):
    engine = create_async_engine(by_alchemy(driver))
    try:
        async with engine.begin() as connection:
            await app.kinds["note"].with_options(connection=connection).aenqueue("kept by a connection")
        async with AsyncSession(engine) as session:
            async with session.begin():
                await app.kinds["note"].with_options(connection=session).aenqueue("kept by a session")
            async with session.begin() as transaction:
                await app.kinds["note"].with_options(connection=session).aenqueue("lost")
                await transaction.rollback()
    finally:
        await engine.dispose()
    assert await texts(app) == ["kept by a connection", "kept by a session"]


def test_django(app: Tessera):
    import django
    from django.conf import settings
    from django.db import connection, transaction

    if not settings.configured:
        parts = urlsplit(postgres_url())
        place = {"NAME": parts.path[1:], "USER": parts.username, "HOST": parts.hostname, "PORT": parts.port}
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **place}})
        django.setup()
    note = app.kinds["note"]
    try:
        with transaction.atomic():
            note.with_options(connection=connection).enqueue("kept")
        with transaction.atomic():
            note.with_options(connection=connection).enqueue("lost")
            transaction.set_rollback(True)
        with pytest.raises(NotInTransaction, match="atomic"):
            note.with_options(connection=connection).enqueue("no transaction")
    finally:
        connection.close()
    assert kept(app) == ["kept"]


@pytest.mark.asyncio
async def test_the_other_colour_is_refused(app: Tessera):
    async with await psycopg.AsyncConnection.connect(postgres_url()) as connection:
        with pytest.raises(InvalidArgument, match="an async one"):
            await asyncio.to_thread(app.kinds["note"].with_options(connection=connection).enqueue, "x")
    with psycopg.connect(postgres_url()) as blocking, pytest.raises(InvalidArgument, match="a blocking one"):
        await app.kinds["note"].with_options(connection=blocking).aenqueue("x")


@pytest.mark.asyncio
async def test_a_connection_that_commits_by_itself_is_refused(app: Tessera):
    async with await psycopg.AsyncConnection.connect(postgres_url(), autocommit=True) as connection:
        note = app.kinds["note"].with_options(connection=connection)
        with pytest.raises(NotInTransaction, match="commits each statement"):
            await note.aenqueue("x")
        async with connection.transaction():
            await note.aenqueue("kept")
    assert await texts(app) == ["kept"]


@pytest.mark.asyncio
async def test_another_database_and_another_thing_are_refused(app: Tessera):
    other = postgres_url().rpartition("/")[0] + "/template1"
    async with await psycopg.AsyncConnection.connect(other) as connection:
        with pytest.raises(ForeignStore, match="holds no Tessera"):
            await app.kinds["note"].with_options(connection=connection).aenqueue("x")
    with pytest.raises(Unsupported, match=r"builtins\.dict"):
        await app.kinds["note"].with_options(connection={}).aenqueue("x")


@pytest.mark.asyncio
async def test_fifty_open_transactions_of_one_tenant_and_queue_wait_for_nobody(app: Tessera):
    """FM-1, INV-4: of the same tenant and queue; only a shared unique key is waited for."""
    note = app.kinds["note"].with_options(tenant="t", priority=3)
    connections = [await psycopg.AsyncConnection.connect(postgres_url()) for _ in range(50)]
    try:
        began = time.monotonic()
        async with asyncio.timeout(20):
            numbered = enumerate(connections)
            calls = [note.with_options(connection=one).aenqueue(f"{n}") for n, one in numbered]
            await asyncio.gather(*calls)
        assert time.monotonic() - began < 20
        assert await texts(app) == []
        await asyncio.gather(*(connection.commit() for connection in connections))
        assert len(await texts(app)) == 50

        keyed = note.with_options(unique=True)
        first, second = connections[:2]
        handle = await keyed.with_options(connection=first).aenqueue("same")
        waits = asyncio.create_task(keyed.with_options(connection=second).aenqueue("same"))
        await asyncio.sleep(0.2)
        assert not waits.done(), "two open transactions own one key"
        await first.commit()
        other = await waits
        assert (other.key, other.created) == (handle.key, False)
        await second.commit()
    finally:
        for connection in connections:
            await connection.close()


@pytest.mark.asyncio
async def test_two_schemas_in_one_database_know_nothing_of_each_other(app: Tessera):
    schema = schemas.emptied("clock")
    url = f"{schemas.direct_url()}&schema={schema}"
    async with Tessera(url) as other:
        note = other.job(app.kinds["note"].function)
        mine, theirs = await app.kinds["note"].aenqueue("mine"), await note.aenqueue("theirs")
        assert (await texts(app), await texts(other)) == (["mine"], ["theirs"])
        async with app.worker(queues=["default"]):
            await mine.aresult(10)
        assert (await theirs.aget()).state is State.AVAILABLE
