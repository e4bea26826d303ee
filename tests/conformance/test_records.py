"""Records: versioned documents under a key, with history, expiry and a due time; and blobs by their hash."""

import hashlib

import pytest

from tessera.model.changes import After, AtVersion, DropRecord, PublishBlob, PutRecord
from tessera.model.errors import NotFound
from tests.conformance.rig import Rig, sweep


def put(rig: Rig, key: str, value: bytes, space: str = "notes", **more) -> None:
    rig.do(PutRecord(space, key, value, **more))


def keys(rig: Rig, space: str = "notes", **more) -> list[str]:
    return [record.key for record in rig.run(rig.store.scan(space, **more))]


@pytest.mark.capability("W7")
def test_versions_rise_by_one_and_none_is_lost(rig: Rig):
    """INV-19."""
    for value in (b"1", b"2", b"3"):
        rig.advance(5)
        put(rig, "n", value)
    record = rig.record("notes", "n")
    assert record is not None
    assert (record.version, record.value, record.written_at) == (3, b"3", rig.now)
    history = rig.run(rig.store.history("notes", "n"))
    assert [(old.version, old.value) for old in history] == [(3, b"3"), (2, b"2"), (1, b"1")]
    assert [old.version for old in rig.run(rig.store.history("notes", "n", 2))] == [3, 2]


@pytest.mark.capability("W7")
def test_a_deleted_record_leaves_a_tombstone_that_is_in_the_history(rig: Rig):
    """INV-19."""
    put(rig, "n", b"1")
    rig.do(DropRecord("notes", "n"))
    tombstone = rig.record("notes", "n")
    assert tombstone is not None
    assert (tombstone.version, tombstone.value) == (2, None)
    assert keys(rig) == []
    put(rig, "n", b"3")
    assert [old.value for old in rig.run(rig.store.history("notes", "n"))] == [b"3", None, b"1"]


def test_deleting_what_was_never_there_leaves_nothing(rig: Rig):
    rig.do(DropRecord("notes", "n"))
    assert rig.record("notes", "n") is None
    assert rig.run(rig.store.history("notes", "n")) == []


def test_tesseras_own_spaces_keep_no_history_and_no_tombstones(rig: Rig):
    put(rig, "n", b"1", "~notes")
    put(rig, "n", b"2", "~notes")
    record = rig.record("~notes", "n")
    assert record is not None
    assert record.version == 2
    assert rig.run(rig.store.history("~notes", "n")) == []
    rig.do(DropRecord("~notes", "n"))
    assert rig.record("~notes", "n") is None
    put(rig, "n", b"3", "~notes")
    rig.do(given=[AtVersion("~notes", "n", 1)])


def test_a_key_in_another_space_is_another_record(rig: Rig):
    put(rig, "n", b"1")
    put(rig, "n", b"2", "other")
    found = rig.run(rig.store.get([("other", "n"), ("notes", "n"), ("none", "n")]))
    assert [record and record.value for record in found] == [b"2", b"1", None]


def test_an_expired_record_reads_as_absent_and_is_due_for_the_sweep(rig: Rig):
    put(rig, "n", b"1", "~notes", expires=After(100))
    rig.advance(99)
    assert rig.record("~notes", "n") is not None
    assert rig.due().records == ()
    rig.advance(1)
    assert rig.record("~notes", "n") is None
    assert keys(rig, "~notes") == []
    assert [record.key for record in rig.due().records] == ["n"]
    sweep(rig)
    assert rig.due().records == ()


def test_a_record_written_again_after_its_expiry_is_not_swept_away(rig: Rig):
    """INV-19: the sweep is guarded by what it saw."""
    put(rig, "n", b"1", "~notes", expires=After(100))
    rig.advance(100)
    put(rig, "n", b"2", "~notes", expires=After(100))
    rig.refused(DropRecord("~notes", "n"), given=[AtVersion("~notes", "n", 0)])
    assert rig.record("~notes", "n") is not None


@pytest.mark.capability("S12")
def test_a_record_falls_due_until_it_is_written_again(rig: Rig):
    put(rig, "n", b"1", "~notes", due=rig.now + 50)
    rig.advance(49)
    assert rig.due().records == ()
    rig.advance(1)
    [record] = rig.due().records
    assert (record.space, record.key, record.value) == ("~notes", "n", b"1")
    put(rig, "n", b"2", "~notes")
    assert rig.due().records == ()


def test_a_scan_goes_by_prefix_in_key_order_and_in_pages(rig: Rig):
    for key in ("b/2", "a/1", "b/1", "b/3", "c", "b", "B/1", "b0"):
        put(rig, key, b"")
    assert keys(rig) == ["B/1", "a/1", "b", "b/1", "b/2", "b/3", "b0", "c"]
    assert keys(rig, prefix="b/") == ["b/1", "b/2", "b/3"]
    assert keys(rig, prefix="b/", after="b/1", limit=1) == ["b/2"]
    assert keys(rig, prefix="b/", after="b/3") == []


@pytest.mark.parametrize("prefix", ["%", "_", "a_", "ä", "\\", "'", "*", "[a]", "\U0010ffff"])
def test_a_prefix_is_text_and_no_pattern(rig: Rig, prefix: str):
    for key in (prefix + "1", "x1", "ab1", "a1"):
        put(rig, key, b"")
    assert keys(rig, prefix=prefix) == [prefix + "1"]


@pytest.mark.parametrize("value", [b"", b"\0\xff", b"x" * 100_000])
def test_a_value_is_bytes_as_they_are(rig: Rig, value: bytes):
    put(rig, "n", value)
    record = rig.record("notes", "n")
    assert record is not None
    assert record.value == value


# Blobs ------------------------------------------------------------------------------------------------------


def stage(rig: Rig, upload: str, *chunks: bytes) -> bytes:
    for number, chunk in enumerate(chunks):
        rig.run(rig.store.stage(upload, number, chunk))
    return hashlib.sha256(b"".join(chunks)).digest()


@pytest.mark.capability("W8")
def test_an_upload_is_readable_under_its_hash_once_published(rig: Rig):
    data = stage(rig, "up", b"one ", b"two ", b"three")
    with pytest.raises(NotFound):
        rig.blob(data)
    rig.do(PublishBlob("up", data, 13))
    assert rig.blob(data) == b"one two three"


@pytest.mark.capability("W9")
def test_a_blob_appears_with_the_group_or_not_at_all(rig: Rig):
    """INV-19."""
    data = stage(rig, "up", b"data")
    rig.refused(PublishBlob("up", data, 4), given=[AtVersion("notes", "n", 1)])
    with pytest.raises(NotFound):
        rig.blob(data)
    rig.do(PublishBlob("up", data, 4), PutRecord("notes", "n", data))
    assert rig.blob(data) == b"data"


def test_an_upload_with_a_missing_chunk_or_another_size_is_refused(rig: Rig):
    """INV-33."""
    rig.run(rig.store.stage("gap", 0, b"a"))
    rig.run(rig.store.stage("gap", 2, b"c"))
    for size in (0, 1, 2):
        assert rig.refused(PublishBlob("gap", b"1" * 32, size)).why == "a chunk is missing"
    stage(rig, "up", b"data")
    assert rig.refused(PublishBlob("up", b"1" * 32, 5)).why == "4 of 5 bytes are staged"
    rig.refused(PublishBlob("nobody", b"1" * 32, 1))


def test_a_chunk_may_be_sent_again_and_in_any_order(rig: Rig):
    """INV-3."""
    for number, chunk in ((1, b"b"), (0, b"x"), (0, b"a"), (1, b"b")):
        rig.run(rig.store.stage("up", number, chunk))
    rig.do(PublishBlob("up", b"1" * 32, 2))
    assert rig.blob(b"1" * 32) == b"ab"


def test_the_same_bytes_may_be_published_twice_and_nothing_is_a_blob_too(rig: Rig):
    data = hashlib.sha256(b"same").digest()
    for upload in ("one", "two"):
        assert stage(rig, upload, b"same") == data
        rig.do(PublishBlob(upload, data, 4))
    assert rig.blob(data) == b"same"
    empty = hashlib.sha256(b"").digest()
    rig.do(PublishBlob("empty", empty, 0))
    assert rig.blob(empty) == b""


def test_a_published_upload_is_used_up(rig: Rig):
    data = stage(rig, "up", b"data")
    rig.do(PublishBlob("up", data, 4))
    rig.refused(PublishBlob("up", data, 4))
    assert rig.blob(data) == b"data"
