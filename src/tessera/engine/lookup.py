"""From what a person calls a job to its row."""

from __future__ import annotations

from typing import Final

from tessera.model.errors import InvalidArgument, NotFound
from tessera.model.ids import JobId, key_of_given_id, read_id
from tessera.model.job import Job
from tessera.rules import names
from tessera.store.protocol import Store

KEY_BYTES: Final = 16


async def find_job(store: Store, reference: str | bytes) -> Job:
    """The job with this key, printed UUID or caller's own id. Raises NotFound, InvalidArgument."""
    keys = candidate_keys(store, reference)
    for job in await store.get_jobs(keys):
        if job is not None:
            return job
    raise NotFound("job", reference if isinstance(reference, str) else reference.hex())


def candidate_keys(store: Store, reference: str | bytes) -> list[JobId]:
    """The keys that a reference can mean: a caller's own id may look like a UUID. Raises InvalidArgument."""
    if isinstance(reference, bytes):
        if len(reference) != KEY_BYTES:
            raise InvalidArgument("job", f"has {len(reference)} bytes; a key has {KEY_BYTES}")
        return [JobId(bytes(reference))]
    names.validate_words("job", reference)
    printed = read_id(reference)
    given = key_of_given_id(store.installation, reference)
    return [given] if printed is None else [printed, given]
