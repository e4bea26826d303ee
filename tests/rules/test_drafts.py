"""From what a producer asks for to what is stored."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.model.changes import AddJob, After, Edge
from tessera.model.ids import JobId
from tessera.model.job import Keep, Need
from tessera.model.policy import QueuePolicy
from tessera.model.states import EventLevel
from tessera.rules.drafts import Draft, Wait, add_job

SILENT = QueuePolicy()
KEY = JobId(b"k" * 16)
PARENT = JobId(b"p" * 16)


def made(policy: QueuePolicy = SILENT, **fields: Any) -> AddJob:
    return add_job(Draft(**{"kind": "work", "payload": b"{}"} | fields), KEY, policy)


def test_every_field_of_a_draft_reaches_the_change():
    """A field that is forgotten here is lost in silence."""
    special: dict[str, Any] = {
        "kind": "mail", "payload": b"[]", "queue": "r", "priority": 4, "given_id": "order", "tags": ("eu",),
        "tenant": "acme", "needs": (Need("api"),), "body": b"terms", "max_attempts": 2, "max_crashes": 9,
        "keep": Keep(1, 2, 3), "watched": True, "parent": PARENT,
    }  # fmt: skip
    change = made(
        **special, due=After(5), expires_ms=6, deadline=After(7), pending=True, waits=(Wait(PARENT),)
    )
    for name, value in special.items():
        assert getattr(change.job, name) == value, name
    assert (change.due, change.expires, change.deadline, change.job.held) == (After(5), 6, After(7), True)
    told = {*special, "due", "expires_ms", "deadline", "pending", "waits", "cost", "unique_key", "events"}
    assert told == set(Draft.__struct_fields__)


@pytest.mark.parametrize(
    "given_id, unique_key, slots",
    [
        ("", "", ()),
        ("order", "", ("id:order",)),
        ("", "u:work:1", ("u:work:1",)),
        ("order", "u:work:1", ("id:order", "u:work:1")),
    ],
)
def test_a_job_owns_its_id_and_its_unique_key(given_id: str, unique_key: str, slots: tuple[str, ...]):
    assert made(given_id=given_id, unique_key=unique_key).job.slots == slots


@pytest.mark.capability("A6")
@pytest.mark.parametrize(
    "fields, weights, stride",
    [
        ({}, None, 0),
        ({}, {"other": 2.0}, 0),
        ({"tenant": "acme"}, None, 1_000),
        ({"tenant": "acme"}, {"acme": 4.0}, 250),
        ({"tenant": "acme", "cost": 3}, {"acme": 0.5}, 6_000),
        ({"cost": 3}, None, 3_000),
        ({}, {"": 2.0}, 500),
        ({"tenant": "acme"}, {"acme": 1_000.0}, 1),
    ],
)
def test_a_job_takes_its_step_from_its_cost_and_its_tenants_weight(
    fields: dict[str, Any], weights: dict[str, float] | None, stride: int
):
    """INV-27: and a queue that nobody shares pays for no fairness."""
    assert made(QueuePolicy(weights=weights), **fields).job.stride == stride


@pytest.mark.parametrize(
    "asked, policy, level",
    [
        (None, None, EventLevel.ODD),
        (None, EventLevel.FULL, EventLevel.FULL),
        (EventLevel.OFF, EventLevel.FULL, EventLevel.OFF),
        (EventLevel.FULL, None, EventLevel.FULL),
    ],
)
def test_the_job_then_its_queue_then_the_default_say_what_is_logged(
    asked: EventLevel | None, policy: EventLevel | None, level: EventLevel
):
    assert made(QueuePolicy(events=policy), events=asked).job.events is level


def test_what_is_waited_for_becomes_edges_to_the_new_job():
    waits = (Wait(PARENT), Wait(JobId(b"q" * 16), "ended", "go"))
    assert made(waits=waits).after == (
        Edge(PARENT, KEY, "completed", "cancel"),
        Edge(JobId(b"q" * 16), KEY, "ended", "go"),
    )
