"""What a store answers when it is only asked: due lists, filters and pages, rows by key."""

import pytest

from tessera.model.changes import After, EditJob, Edits, MoveJob, PutRecord, TakeSlot
from tessera.model.policy import Rate
from tessera.model.queries import EXAMINED_LIMIT, PAGE_LIMIT, Filter, Page
from tessera.model.states import State
from tests.conformance.rig import LEASE, Rig, add, key_of, name_of


def names(rig: Rig, **which) -> list[str]:
    return [name_of(job.id) for job in rig.all_jobs(Filter(**which))]


# due --------------------------------------------------------------------------------------------------------


def test_scheduled_jobs_are_due_in_the_order_of_their_time(rig: Rig):
    """INV-13."""
    rig.do(add("b", due=After(20)), add("a", due=After(30)), add("c", due=After(20)), add("d", due=After(31)))
    rig.advance(30)
    due = rig.due()
    assert [name_of(job.id) for job in due.scheduled] == ["b", "c", "a"]
    assert due.now == rig.now
    assert [name_of(job.id) for job in rig.due(2).scheduled] == ["b", "c"]


def test_only_leases_that_are_over_are_lapsed(rig: Rig):
    """INV-8."""
    rig.do(add("a"), add("b"))
    rig.take(lease=100)
    rig.take(lease=101)
    rig.advance(100)
    assert [name_of(job.id) for job in rig.due().lapsed] == ["a"]
    rig.advance(1)
    assert sorted(name_of(job.id) for job in rig.due().lapsed) == ["a", "b"]
    assert len(rig.due(1).lapsed) == 1


@pytest.mark.capability("H8")
def test_jobs_not_started_in_time_are_expired_wherever_they_wait_and_running_ones_are_not(rig: Rig):
    rig.do(add("0", expires=10))
    rig.take()
    rig.do(
        add("a", expires=10),
        add("b", expires=10, held=True),
        add("c", due=After(5), expires=5),
        add("d", expires=11),
    )
    rig.advance(10)
    assert sorted(name_of(job.id) for job in rig.due().expired) == ["a", "b", "c"]


def test_due_may_be_narrowed_to_the_jobs_of_some_queues(rig: Rig):
    rig.do(
        *(add(queue, queue, due=After(10), expires=LEASE) for queue in "xyz"),
        *(add(queue + "1", queue) for queue in "xyz"),
    )
    rig.claim("x", "y", "z", n=9)
    rig.advance(LEASE + 10)
    due = rig.due(queues=["x", "z"])
    for jobs in (due.scheduled, due.lapsed, due.expired):
        assert {job.queue for job in jobs} == {"x", "z"}
    assert rig.due(queues=[]).scheduled == ()


def test_what_is_not_due_is_not_listed(rig: Rig):
    rig.declare({"r": Rate(1, 1_000)})
    rig.do(
        add("a", due=After(10)), PutRecord("~notes", "n", b"", due=After(10)), add("b"), add("c", needs="r")
    )
    rig.do(TakeSlot("t:x", key_of("b"), rig.now + 10))
    rig.claim(n=9)
    due = rig.due()
    assert (due.scheduled, due.lapsed, due.expired, due.gone, due.slots, due.counters, due.records) == (
        (),
    ) * 7
    assert due.next_due == rig.now + 10


# Rows by key ------------------------------------------------------------------------------------------------


def test_rows_come_in_the_order_of_the_keys_asked_for(rig: Rig):
    rig.do(add("a"), add("b"))
    rig.bury("c")
    found = rig.run(rig.store.get_jobs([key_of(name) for name in ("c", "nobody", "a", "c")]))
    assert [job and name_of(job.id) for job in found] == ["c", None, "a", "c"]
    assert rig.run(rig.store.get_jobs([])) == []


# find_jobs --------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(rig: Rig) -> Rig:
    """Ten jobs that differ in all that a filter can ask for."""
    rig.do(
        add("a", tags=("x",)),
        add("b", tags=("x", "y")),
        add("c", "other", tags=("y", "z")),
        add("d", kind="special"),
        add("e", tenant="t", due=After(10)),
        add("f", held=True, parent=key_of("a")),
        add("g", "other", parent=key_of("a")),
        add("h", needs="full", tags=("x",)),
    )
    rig.bury("i", tags=("x",))
    rig.do(add("j", parent=key_of("a")), MoveJob(key_of("j"), State.CANCELLED, reason="by ada"))
    assert [name_of(job.id) for job in rig.claim("q", n=2, holder="me")] == ["a", "b"]
    rig.do(MoveJob(key_of("b"), State.WAITING, edits=Edits(cancel_requested=True)))
    return rig


@pytest.mark.parametrize("which,found", [
    ({}, "jihgfedcba"),
    ({"queues": ("other",)}, "gc"),
    ({"queues": ("other", "q", "none")}, "jihgfedcba"),
    ({"states": (State.DEAD, State.CANCELLED)}, "ji"),
    ({"states": (State.RUNNING,)}, "a"),
    ({"states": (State.AVAILABLE, State.DEAD)}, "ihgdc"),
    ({"queues": ("q",), "states": (State.AVAILABLE,)}, "hd"),
    ({"kinds": ("special", "none")}, "d"),
    ({"tags_all": ("x",)}, "ihba"),
    ({"tags_all": ("x", "y")}, "b"),
    ({"tags_any": ("y", "z")}, "cb"),
    ({"tags_any": ("x", "z"), "tags_all": ("y",)}, "cb"),
    ({"tags_all": ("none",)}, ""),
    ({"tenant": "t"}, "e"),
    ({"tenant": ""}, "jihgfdcba"),
    ({"parent": key_of("a")}, "jgf"),
    ({"holder": "me"}, "a"),
    ({"holder": "you"}, ""),
    ({"cancel_requested": True}, "b"),
    ({"cancel_requested": False, "tags_all": ("y",)}, "c"),
    ({"ids": (key_of("c"), key_of("i"), key_of("nobody"))}, "ic"),
    ({"ids": (key_of("c"), key_of("i")), "states": (State.DEAD,)}, "i"),
    ({"reason": "by "}, "j"),
    ({"reason": "ada"}, ""),
    ({"parent": key_of("a"), "states": (State.CANCELLED,)}, "j"),
])  # fmt: skip
@pytest.mark.parametrize("limit", [1, 3, 200])
def test_a_filter_finds_what_it_names_newest_first_in_pages_of_any_size(
    mixed: Rig, which: dict, found: str, limit: int
):
    assert [name_of(job.id) for job in mixed.all_jobs(Filter(**which), limit)] == list(found)


@pytest.mark.capability("P7")
def test_tags_are_found_after_they_were_edited(rig: Rig):
    rig.do(add("a", tags=("x",)), add("b"))
    rig.do(EditJob(key_of("a"), Edits(tags=("y",))), EditJob(key_of("b"), Edits(tags=("x", "y"))))
    assert names(rig, tags_all=("x",)) == ["b"]
    assert names(rig, tags_any=("y",)) == ["b", "a"]
    rig.move("a", State.DEAD)
    assert names(rig, tags_any=("y",)) == ["b", "a"]


def test_blocked_jobs_are_found_under_the_key_they_lack(rig: Rig):
    rig.do(add("a", kind="rare"), add("b"))
    rig.claim(n=9, kinds=frozenset())
    assert names(rig, blocked_on="kind:q:rare") == ["a"]


def test_a_page_is_bounded_and_the_last_one_says_so(rig: Rig):
    rig.do(*(add(f"{n:04}") for n in range(PAGE_LIMIT + 5)))
    page = rig.run(rig.store.find_jobs(Filter(), Page(limit=10_000)))
    assert len(page.jobs) == PAGE_LIMIT
    assert page.after
    rest = rig.run(rig.store.find_jobs(Filter(), Page(page.after)))
    assert (len(rest.jobs), rest.after) == (5, b"")
    assert page.examined == PAGE_LIMIT


def test_a_search_stops_after_so_many_rows_and_can_be_continued(rig: Rig):
    """INV-33: one read never walks the whole store."""
    rig.do(*(add(f"{n:06}", kind="rare" if n == 0 else "work") for n in range(EXAMINED_LIMIT + 100)))
    page = rig.run(rig.store.find_jobs(Filter(kinds=("rare",)), Page()))
    assert (page.jobs, page.examined) == ((), EXAMINED_LIMIT)
    assert page.after
    page = rig.run(rig.store.find_jobs(Filter(kinds=("rare",)), Page(page.after)))
    assert [name_of(job.id) for job in page.jobs] == ["000000"]
    assert page.after == b""
