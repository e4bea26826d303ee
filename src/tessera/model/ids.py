"""A job's key: 16 bytes, shown as a UUID. A caller's own id is a name for such a key."""

from __future__ import annotations

from typing import NewType

JobId = NewType("JobId", bytes)
"""16 bytes: a UUIDv7 made by the producer, or the uuid5 of a caller's id. Bytes inside, a UUID at every door.
"""


def show_id(job: bytes) -> str:
    """The printed form of a key.

    >>> show_id(bytes(16))
    '00000000-0000-0000-0000-000000000000'
    """
    text = job.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def read_id(text: str) -> JobId | None:
    """The key behind a printed UUID, or None if the text is not one."""
    import uuid  # it asks what platform this is: 4 ms of what `import tessera` would cost

    try:
        return JobId(uuid.UUID(text).bytes)
    except ValueError:
        return None


def key_of_given_id(installation: bytes, given_id: str) -> JobId:
    """The key of a caller's own id: ``uuid5(installation, id)``; every producer derives the same one."""
    import uuid

    return JobId(uuid.uuid5(uuid.UUID(bytes=installation), given_id).bytes)
