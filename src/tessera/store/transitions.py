"""Moving a job: the one place where a row changes its state in a one-writer store.

Whatever the reason for a move, the same things follow from it, in the same transaction: units come back, the
fence rises, counts and log agree with the rows, slots are freed, edges are settled, and whoever has room now
is woken. So no capability can forget one.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple, replace

from tessera.model.changes import Counter, Edge, Edits, Record, Shift, Slot
from tessera.model.ids import JobId
from tessera.model.job import NEVER, End, Job, Need
from tessera.model.policy import POLICY_SPACE
from tessera.model.queries import Event
from tessera.model.states import FINAL, State
from tessera.rules import admission, lifecycle, ordering
from tessera.store.working import Working

SETTLED_AT_ONCE: Final = 1_000
"""Edges an end settles in its own commit; a follow-up record has a duty go on."""
KEPT_ENDS: Final = 10
PROMISE_MS: Final = 1_000
"""How long units stay promised to a woken job that nobody claims while others wait for them."""
HIDDEN_MS: Final = 50
"""When to look again for a job that was set aside and whose row somebody else had."""
FOLLOWUP_SPACE: Final = "~followup"
_BY_CLAIM: Final = frozenset({State.RUNNING, State.BLOCKED})
_GOES_ON: Final = frozenset({State.AVAILABLE, State.SCHEDULED})
_WAITS: Final = frozenset({State.PENDING, State.WAITING})
_EDITS: Final = Edits.__struct_fields__
_followup: Final = msgspec.msgpack.Decoder(tuple[State, int])


def slot_outlives(key: str, state: State) -> bool:
    """Whether a job keeps this slot after it ended so: an ``id:`` until its row goes, a ``ud:`` while it is
    dead.
    """
    return key.startswith("id:") or (state is State.DEAD and key.startswith("ud:"))


def refusal(job: Job, to: State, edits: Edits) -> str:
    """Why the state machine refuses this move; '' if it does not. ``to`` is where the job would land:
    ``scheduled`` if due ahead.
    """
    if not lifecycle.allowed(job.state, to):
        return f"a {job.state} job cannot become {to}"
    if to in _BY_CLAIM:
        return "only a claim leases a job or sets it aside"
    if to in _GOES_ON and job.state in _WAITS:
        if job.open:
            return f"it still waits for {job.open} other job{'s' if job.open > 1 else ''}"
        if job.state is State.PENDING and job.held and edits.held is not False:
            return "it is held until it is promoted"
    return ""


def landing(to: State, due: int, now: int) -> State:
    """Where a move ends: what shall be available but is due ahead is scheduled."""
    return State.SCHEDULED if to is State.AVAILABLE and due > now else to


def edited(job: Job, edits: Edits, now: int) -> dict[str, Any]:
    """The fields that edits change, resolved against the store's time. ``due`` is left to the caller."""
    fields: dict[str, Any] = {}
    values = astuple(edits)
    left = len(values) - values.count(UNSET)
    for name, value in zip(_EDITS, values, strict=True):
        if left == 0:
            break
        if value is not UNSET:
            left -= 1
            if name not in ("due", "due_latest", "lease"):
                fields[name] = value
    if edits.lease is not UNSET:
        until = now + edits.lease.ms
        fields["lease_until"] = min(until, job.cap_at) if job.cap_at else until
    return fields


def add(work: Working, job: Job) -> None:
    """A new row, its times resolved: to ``pending``, ``scheduled`` or ``available``."""
    if job.held or job.open:
        job = replace(job, state=State.PENDING)
    elif job.due > work.now:
        job = replace(job, state=State.SCHEDULED)
    else:
        job = _ready(work, replace(job, state=State.AVAILABLE))
    job = work.log_move(None, job, "", "")
    work.count(job.queue, job.state, +1)
    work.jobs.put(job.id, job)


def move(
    work: Working,
    job: Job,
    to: State,
    *,
    due: int = 0,
    fields: dict[str, Any] | None = None,
    end: End | None = None,
    reason: str = "",
    by: str = "",
    refund: bool = False,
) -> Job:
    """Bring a job to another state with all that follows from it. The caller has asked ``refusal``."""
    before = job.state
    to = landing(to, due, work.now)
    if job.cancel_requested and before is State.RUNNING and to in _GOES_ON:
        # Whoever ends the attempt may not have seen the request yet; a cancel that was acknowledged is not
        # lost to that race.
        to, reason = State.CANCELLED, reason or "cancelled"
    values: dict[str, Any] = {"state": to, "reason": reason, "blocked_on": ""}
    if before is State.RUNNING:
        values |= _lease_ended(work, job, end, refund)
        values["cancel_requested"] = False
        if job.cancel_requested and to is State.WAITING:
            # The split is written, then taken back with its children: whoever asked for a cancel means both.
            work.unwanted.append(job.id)
    elif before is State.AVAILABLE:
        _give_up_permit(work, job)
    elif before is State.BLOCKED:
        _leave_the_line(work, job)
    elif before in FINAL:
        values |= {"fence": job.fence + 1, "finished_at": 0, "gone_at": 0, "result": None}
        work.archive.put(job.id, None)
    if end is not None:
        values["ends"] = (*job.ends[1 - KEPT_ENDS :], replace(end, ended_at=work.now))
    if fields:
        values |= fields
    if to is State.SCHEDULED:
        values["due"] = due
    elif to in FINAL:
        values |= _retention(job, to, work.now)
    moved = replace(job, **values)
    if to is State.AVAILABLE:
        moved = _ready(work, moved, before, gave_back=refund)
    moved = work.log_move(before, moved, end.end if end else "", by)
    work.count(job.queue, before, -1)
    if to in FINAL:
        _end(work, job, moved)
    else:
        work.count(moved.queue, to, +1)
        work.jobs.put(moved.id, moved)
        if before in FINAL:
            _take_slots_again(work, moved)
    return moved


def set_aside(work: Working, job: Job, key: str, reason: str) -> None:
    """``available`` -> ``blocked``: out of the way of those behind it, its place in the order kept."""
    work.shift(key, Shift(blocked=+1))
    moved = move(work, job, State.BLOCKED, reason=reason)
    work.jobs.put(moved.id, replace(moved, blocked_on=key))


def wake(work: Working, job: Job, key: str) -> None:
    """``blocked`` -> ``available``, holding the promise of its units under the key that woke it."""
    moved = move(work, job, State.AVAILABLE)
    units = units_of(moved, key)
    if units:
        work.shift(key, Shift(awake=units))
        work.jobs.put(moved.id, replace(moved, blocked_on=key))


def units_of(job: Job, key: str) -> int:
    """Units of a counter that the job needs."""
    return next((need.units for need in job.needs if need.key == key), 0)


def drop(work: Working, job: Job, what: str, by: str = "") -> None:
    """Remove the row, hot or archived, and all it owns."""
    if job.is_final:
        work.archive.put(job.id, None)
        if job.heirs:
            # Those on hold for its redrive, and those whose turn a follow-up has not come to yet.
            work.ended.append((job.id, job.state, 0))
    else:
        if job.state is State.RUNNING:
            _lease_ended(work, job, None, refund=False)
        elif job.state is State.AVAILABLE:
            _give_up_permit(work, job)
        elif job.state is State.BLOCKED:
            _leave_the_line(work, job)
        work.jobs.put(job.id, None)
        _forget_edges_to(work, job, cancel_children=job.state is State.WAITING)
        if job.heirs:
            work.ended.append((job.id, State.CANCELLED, 0))
    work.count(job.queue, job.state, -1)
    for key in job.slots:
        _free_slot(work, key, job.id)
    if what and job.events is not job.events.OFF:
        work.log(Event(0, work.now, what, job.queue, job.id, job.event_count + 1, by))


def settle(work: Working) -> None:
    """Finish what the moves of this group set off: settle edges of jobs that ended, wake whoever has room.
    Moves may set off more.
    """
    for edge in work.late_edges:
        parent = work.archive.get(edge.parent)
        if parent is not None and work.edges.get((edge.parent, edge.child)) is not None:
            settle_edge(work, edge, parent.state)
    work.late_edges.clear()
    while work.unwanted or work.ended or work.touched:
        while work.unwanted:
            job = work.job(work.unwanted.pop())
            if job is not None and job.state is State.WAITING:
                move(work, job, State.CANCELLED, reason="cancelled")
        while work.ended:
            settle_edges(work, *work.ended.pop())
        if work.touched:
            key = next(iter(work.touched))
            del work.touched[key]
            _wake_who_has_room(work, key)


def settle_edges(work: Working, parent: JobId, ended_as: State, passed_over: int = 0) -> None:
    """Tell the jobs that wait for this one how it ended, so many at once; a follow-up says how to go on, for
    its row may be gone.

    ``passed_over`` edges come first in the order and stay: their jobs are on hold.
    """
    edges = work.edges_from(parent, passed_over + SETTLED_AT_ONCE + 1)
    is_gone = work.any_job(parent) is None
    on_hold = sum(
        not settle_edge(work, edge, ended_as, is_gone=is_gone)
        for edge in edges[passed_over : passed_over + SETTLED_AT_ONCE]
    )
    if len(edges) > passed_over + SETTLED_AT_ONCE:
        how = msgspec.msgpack.encode((ended_as, passed_over + on_hold))
        put_record(work, FOLLOWUP_SPACE, parent.hex(), how, due_at=work.now)


def go_on_settling(work: Working, parent: JobId) -> None:
    """Do what the follow-up says. A parent redriven meanwhile settles its edges when it ends again."""
    followup = work.records.get((FOLLOWUP_SPACE, parent.hex()))
    put_record(work, FOLLOWUP_SPACE, parent.hex(), None)
    if work.job(parent) is not None:
        return
    if followup is not None and followup.value is not None:
        ended_as, passed_over = _followup.decode(followup.value)
        work.ended.append((parent, ended_as, passed_over))
    elif (job := work.archive.get(parent)) is not None:
        work.ended.append((parent, job.state, 0))


def settle_edge(work: Working, edge: Edge, ended_as: State, *, is_gone: bool = False) -> bool:
    """One dependant: go on, be cancelled or dead with the parent, or be held until the parent is redriven
    (then the answer is False). A parent whose row is gone will never be redriven, so nobody is held for it.
    """
    child = work.job(edge.child)
    satisfied = edge.on == "ended" or ended_as is State.COMPLETED or edge.otherwise == "go"
    if not satisfied and edge.otherwise == "hold" and child is not None and not is_gone:
        return False
    work.edges.put((edge.parent, edge.child), None)
    if child is None or child.state not in (State.PENDING, State.WAITING):
        return True
    child = replace(child, open=child.open - 1)
    work.jobs.put(child.id, child)
    if not satisfied:
        is_join = child.state is State.WAITING
        reason = f"{'child' if is_join else 'parent'}_{ended_as}"
        move(work, child, State.DEAD if edge.otherwise == "dead" else State.CANCELLED, reason=reason)
    elif child.open == 0 and not child.held:
        move(work, child, State.AVAILABLE, due=child.due)
    return True


def put_record(
    work: Working, space: str, key: str, value: bytes | None, *, due_at: int = 0, expires_at: int = 0
) -> None:
    """Write a record, or with None a tombstone; its version rises by one."""
    old = work.records.get((space, key))
    reserved = space.startswith("~")
    if value is None and (old is None or reserved):
        work.records.put((space, key), None)
    else:
        record = Record(space, key, (old.version if old else 0) + 1, value, work.now, due_at, expires_at)
        work.records.put((space, key), record)
        if not reserved:
            work.history.append(record)
    if space == POLICY_SPACE:
        work.policy_bumped = True


# Pieces of a move -------------------------------------------------------------------------------------------


def _ready(work: Working, job: Job, came_from: State | None = None, *, gave_back: bool = False) -> Job:
    """Place a job in the ready order.

    What was set aside or given back keeps its place and what was scheduled is ordered by its due time; all
    else queues up behind. A lane (queue and priority) is fair from its first job with a tenant on: then
    everybody in it takes a pass, and nobody comes before what was claimed already.
    """
    kept = gave_back or came_from is State.BLOCKED
    # A job that is promoted before its time is due now: else it would stand behind all that became due since.
    due = min(job.due, work.now) if kept or came_from is State.SCHEDULED else work.now
    if work.tags is not None:
        pass_ = work.tags.at_least(job) if kept else work.tags.guess(job)
        return replace(job, pass_=pass_, due=due, placed=kept and job.placed)
    lane = (job.queue, job.priority)
    floor = work.floors.get(lane)
    if floor is None and not job.stride:
        return replace(job, pass_=0, due=due)
    if floor is None:
        floor = 0
        work.floors.put(lane, floor)
    if kept:
        return replace(job, pass_=max(job.pass_, floor), due=due)
    key = (job.queue, job.priority, job.tenant)
    tag = ordering.next_pass(work.passes.get(key) or 0, floor, job.stride or ordering.PASS_SCALE)
    work.passes.put(key, tag)
    return replace(job, pass_=tag, due=due)


def _lease_ended(work: Working, job: Job, end: End | None, refund: bool) -> dict[str, Any]:
    """Give units back and make the old lease worthless."""
    for need in job.holds:
        work.shift(need.key, Shift(used=-need.units))
    if refund:
        held = {need.key for need in job.holds}
        for need in job.needs:
            if need.key not in held:
                work.shift(need.key, Shift(refund=need.units))
    return {
        "holds": (),
        "holder": "",
        "lease_until": 0,
        "cap_at": 0,
        "claimed_at": 0,
        "last_fence": job.fence,
        "last_end": end.end if end else ("given_back" if refund else ""),
        "fence": job.fence + 1,
    }


def _give_up_permit(work: Working, job: Job) -> None:
    """A woken job that leaves ``available`` without its units hands the promise on."""
    if job.blocked_on:
        work.shift(job.blocked_on, Shift(awake=-units_of(job, job.blocked_on)))


def _leave_the_line(work: Working, job: Job) -> None:
    work.shift(job.blocked_on, Shift(blocked=-1))


def _retention(job: Job, state: State, now: int) -> dict[str, Any]:
    kept_for = job.keep.after(state)
    return {"finished_at": now, "gone_at": NEVER if kept_for < 0 else now + kept_for, "open": 0}


def _end(work: Working, before: Job, job: Job) -> None:
    """A final state: to the archive, or nowhere if nothing is to be kept."""
    _forget_edges_to(work, before, cancel_children=before.state is State.WAITING)
    work.jobs.put(job.id, None)
    kept_for = job.keep.after(job.state)
    if kept_for:
        work.archive.put(job.id, job)
        work.count(job.queue, job.state, +1)
    for key in job.slots:
        if not kept_for or not slot_outlives(key, job.state):
            _free_slot(work, key, job.id)
    if job.heirs:
        work.ended.append((job.id, job.state, 0))


def _forget_edges_to(work: Working, job: Job, *, cancel_children: bool) -> None:
    """Nobody waits here any more. Children of a split that is over have nothing left to work for."""
    if not job.open:
        return
    for edge in work.edges_to(job.id):
        work.edges.put((edge.parent, edge.child), None)
        child = work.job(edge.parent)
        if not cancel_children or child is None or child.parent != job.id:
            continue
        if child.state is State.RUNNING:
            work.jobs.put(child.id, replace(child, cancel_requested=True))
        else:
            move(work, child, State.CANCELLED, reason="parent_ended")


def _free_slot(work: Working, key: str, owner: JobId) -> None:
    slot = work.slots.get(key)
    if slot is not None and slot.owner == owner:
        work.slots.put(key, None)


def _take_slots_again(work: Working, job: Job) -> None:
    """A redriven job owns its keys again. The caller has checked that they are free."""
    for key in job.slots:
        work.slots.put(key, Slot(key, job.id))


def _wake_who_has_room(work: Working, key: str) -> None:
    counter = work.counter(key)
    if counter.blocked and counter.awake and 0 < counter.wake_at <= work.now:
        counter = _take_promises_back(work, counter)
    room = admission.free_units(counter, work.now) - counter.awake
    hidden = False
    while counter.blocked and room > 0 and not key.startswith("kind:"):
        asked = min(counter.blocked, room, 100)
        line = work.blocked(key, asked)
        hidden = len(line) < asked
        for job in line:
            units = units_of(job, key)
            if units > room:
                room = 0
                break
            room -= units
            wake(work, job, key)
        if not line:
            break
        counter = work.counter(key)
    _plan_next_look(work, key, hidden=hidden)


def _take_promises_back(work: Working, counter: Counter) -> Counter:
    """Woken jobs that nobody claimed in a while: their queue is paused, or has no worker. They stay
    available, and the next in line may have the units meanwhile (INV-28).
    """
    woken = work.woken(counter.key, SETTLED_AT_ONCE)
    for job in woken:
        work.jobs.put(job.id, replace(job, blocked_on=""))
    promised = sum(units_of(job, counter.key) for job in woken)
    counter = admission.shifted(counter, Shift(awake=-promised), work.now)
    work.put_counter(counter)
    return counter


def _plan_next_look(work: Working, key: str, *, hidden: bool) -> None:
    """One timer a counter, never one a job; a counter that says nothing any more is forgotten.

    ``hidden``: some of those set aside were not to be seen, on stores where another transaction may have
    their rows.
    """
    counter = work.counter(key)
    if admission.is_idle(counter, work.now):
        if work.counters.get(key) is not None:
            work.counters.put(key, None)
        return
    wake_at = 0
    if counter.blocked and not key.startswith("kind:"):
        head = work.blocked(key, 1)
        wake_at = admission.looks_again_at(counter, units_of(head[0], key) if head else 1, work.now)
        if counter.awake:
            planned = counter.wake_at if counter.wake_at > work.now else work.now + PROMISE_MS
            wake_at = min(wake_at or planned, planned, work.now + PROMISE_MS)
        if hidden:
            wake_at = min(wake_at or work.now + HIDDEN_MS, work.now + HIDDEN_MS)
    else:
        wake_at = admission.full_at(counter, work.now)
    if wake_at != counter.wake_at:
        work.put_counter(replace(counter, wake_at=wake_at))


def taken(needs: tuple[Need, ...], work: Working) -> tuple[Need, ...]:
    """Those needs whose units come back when the job leaves ``running``: ceilings, and counters without a
    policy.
    """
    return tuple(need for need in needs if not work.counter(need.key).unit)
