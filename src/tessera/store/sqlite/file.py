"""One SQLite file as one process sees it: what its handles of both colours share.

The line to the writer, the pool of readers and the watch live from the first open handle to the last. A
fork is survived so: before it every connection is closed, since SQLite keeps its locks in the process and a
child would believe in locks that only the parent holds; after it parent and child open their own. If
something would not be closed in time, the child lets the inherited connections lie, neither used nor
closed. A file that is dropped without having been closed ends its life all the same.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Final

from tessera import seam
from tessera.model.errors import InvalidArgument, StoreClosed, TesseraError
from tessera.store.driver import Doorbell
from tessera.store.sql.schemafiles import Step
from tessera.store.sqlite.ballast import Ballast
from tessera.store.sqlite.clock import Clock
from tessera.store.sqlite.connection import translated
from tessera.store.sqlite.driver import Crew, Line, Ticket, Watch
from tessera.store.sqlite.filesystem import refuse_unsafe
from tessera.store.sqlite.migrations import our_steps
from tessera.store.sqlite.readers import Readers
from tessera.store.sqlite.writer import Writer

BUSY_TIMEOUT_MS: Final = 5_000
BALLAST_BYTES: Final = 1024 * 1024
FORK_SECONDS: Final = 2.0
"""How long a fork waits for the writer and the readers."""

_files: weakref.WeakSet[SqliteFile] = weakref.WeakSet()


class Life:
    """From the first open handle to the last, or from a fork on."""

    def __init__(self, file: SqliteFile) -> None:
        self.pid = os.getpid()
        self.writer = file.new_writer()
        self.readers = Readers(file.path, file.busy_timeout_ms, file.clock.now)
        self._writing = Crew("tessera-sqlite-writer", 1)
        self.reading = Crew("tessera-sqlite-reader", 2)
        self.line = Line(self.writer.run, self._writing)
        self.watch = Watch(self._look)

    def end(self) -> None:
        """Close connections and end threads."""
        self.watch.stop()
        self.line.run(Ticket(lambda writer: writer.close(), alone=True), is_last=True)
        self.readers.close()
        self._writing.stop()
        self.reading.stop()

    def _look(self) -> bool:
        try:
            return self.line.run(Ticket(lambda writer: bool(writer.look()), alone=True))
        except TesseraError:
            return False  # whoever writes or reads next meets the same and says so


class SqliteFile:
    """A database file, to be given to every handle of this process on it.

    ``synchronous`` is ``full`` (an acknowledged write survives a power cut) or ``normal`` (it survives the
    death of the process). ``clock`` and ``steps`` are for tests: such a clock stands where it is put. Raises
    InvalidArgument for a database that is no file.

    >>> SqliteFile(":memory:")
    Traceback (most recent call last):
    tessera.model.errors.InvalidArgument: path: ':memory:' is no file; use memory:// for a store without one
    """

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "full",
        clock: Callable[[], int] | None = None,
        busy_timeout_ms: int = BUSY_TIMEOUT_MS,
        ballast_bytes: int = BALLAST_BYTES,
        unsafe_filesystem: bool = False,
        steps: Sequence[Step] | None = None,
    ) -> None:
        if not path or path.startswith((":memory:", "file:")):
            raise InvalidArgument("path", f"{path!r} is no file; use memory:// for a store without one")
        if synchronous not in ("full", "normal"):
            raise InvalidArgument("synchronous", f"{synchronous!r} is neither 'full' nor 'normal'")
        self.path = os.path.abspath(path)
        self.busy_timeout_ms = busy_timeout_ms
        self.clock = Clock(seam.now_ms, seam.monotonic) if clock is None else Clock(clock)
        self.bell = Doorbell()
        self.ballast = Ballast(self.path + ".ballast", ballast_bytes)
        self.steps = our_steps() if steps is None else tuple(steps)
        self.installation = b""
        """16 bytes; empty until the file was opened once."""
        self.synchronous = synchronous
        self._unsafe_filesystem = unsafe_filesystem
        self._lock = threading.Lock()
        self._handles = 0
        self._life: Life | None = None
        self._end_when_dropped: weakref.finalize[[Life], SqliteFile] | None = None
        self._is_held = False
        _files.add(self)

    def attach(self) -> None:
        """One handle more. The first one opens the file, creates or checks the schema. Blocks."""
        with self._lock:
            if self._life is None or self._life.pid != os.getpid():
                if not self._unsafe_filesystem:
                    refuse_unsafe(self.path)
                self._life = self._begin_life()
                self._mind(self._life)
            self._handles += 1

    def detach(self) -> None:
        """One handle less. The last one closes connections and ends threads. Blocks."""
        with self._lock:
            self._handles = max(0, self._handles - 1)
            is_last = self._handles == 0
        if is_last:
            self.close()

    def close(self) -> None:
        """Close connections and end threads, whatever handles are open: their verbs raise StoreClosed.
        Blocks.
        """
        with self._lock:
            life, self._life = self._life, None
            self._handles = 0
            if self._end_when_dropped is not None:
                self._end_when_dropped.detach()
        if life is not None and life.pid == os.getpid():
            life.end()

    def life(self) -> Life:
        """What the open handles share, in this process. Raises StoreClosed."""
        life = self._life
        if life is not None and life.pid == os.getpid():
            return life
        if life is None:
            raise StoreClosed
        with self._lock:
            if self._life is life:
                _leave_to_the_parent(life)
                self._life = Life(self)
                self._mind(self._life)
            return self._life or life

    def new_writer(self) -> Writer:
        """A writer that has not opened its connection yet."""
        return Writer(
            self.path,
            synchronous=self.synchronous,
            busy_timeout_ms=self.busy_timeout_ms,
            clock=self.clock,
            ballast=self.ballast,
            bell=self.bell,
            steps=self.steps,
            installation=self.installation,
        )

    def migrate(self, to: int | None, dry_run: bool) -> list[str]:
        """Bring the file to a schema version while no handle is open. Blocks. See ``Store.migrate``."""
        if not self._unsafe_filesystem:
            refuse_unsafe(self.path)
        writer = self.new_writer()
        try:
            return writer.migrate(to, dry_run)
        except Exception as error:
            meant = translated(error)
            if meant is error:
                raise
            raise meant from error
        finally:
            writer.close()

    def _mind(self, life: Life) -> None:
        """See that a life ends with the last that knows of this file, if nobody ends it before."""
        if self._end_when_dropped is not None:
            self._end_when_dropped.detach()
        self._end_when_dropped = weakref.finalize(self, _end_aside, life)
        # At the end of the interpreter nothing is gained by it, and no thread can be started any more.
        self._end_when_dropped.atexit = False

    def _begin_life(self) -> Life:
        life = Life(self)
        try:
            self.installation = life.writer.prepare()
        except BaseException as error:
            life.writer.close()
            meant = translated(error)
            if meant is error:
                raise
            raise meant from error
        return life

    # Fork: see the module -----------------------------------------------------------------------------------

    def before_fork(self) -> None:
        life = self._life
        self._is_held = life is not None and life.pid == os.getpid() and life.line.hold(FORK_SECONDS)
        if life is not None and self._is_held:
            life.writer.close()
            life.readers.pause(FORK_SECONDS)

    def after_fork_in_parent(self) -> None:
        if self._life is not None and self._is_held:
            self._is_held = False
            self._life.readers.resume()
            self._life.line.resume()

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self.bell = Doorbell()
        self._is_held = False


def _end_aside(life: Life) -> None:
    """End a life whose file nobody knows any more, in a thread of its own.

    The garbage collector calls this in whatever thread it runs in: in one of ours, which cannot wait for
    itself, or in one that holds the very lock that closing asks for.
    """
    if life.pid == os.getpid():
        seam.start_thread(life.end, "tessera-sqlite-end")


def _leave_to_the_parent(life: Life) -> None:
    """Let inherited connections lie: closing one here could fold or remove a log that the parent still
    writes.
    """
    inherited: list[sqlite3.Connection] = [*life.writer.disown(), *life.readers.disown()]
    if inherited:
        import ctypes

        for connection in inherited:
            # One reference more than there are owners, so that not even the end of the interpreter closes it.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _each(call: Callable[[SqliteFile], None]) -> Callable[[], None]:
    def run() -> None:
        for file in list(_files):
            call(file)

    return run


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_each(SqliteFile.before_fork),
        after_in_parent=_each(SqliteFile.after_fork_in_parent),
        after_in_child=_each(SqliteFile.after_fork_in_child),
    )
