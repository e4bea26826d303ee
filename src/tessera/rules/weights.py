"""In which order a worker tries its queues, so that busy ones are served in proportion to their weights.

Smooth weighted round robin, charged by the job: a queue that has had less than its share comes first. Nothing
is drawn by dice and nothing is shared between workers; each is fair by itself, so the fleet is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

Credits: TypeAlias = Mapping[str, float]
"""Jobs that a queue has had too few (above 0) or too many (below 0)."""


def order(weights: Mapping[str, float], owed: Credits) -> tuple[str, ...]:
    """The queues, the one with the greatest claim on the next job first; equals in the order given.

    >>> order({"critical": 6, "low": 1}, {})
    ('critical', 'low')
    >>> order({"critical": 6, "low": 1}, {"critical": -1.0, "low": 1.0})
    ('low', 'critical')
    """
    total = sum(weights.values())
    # Rounded, so that a third thrice counted is one and equals stay equals.
    return tuple(sorted(weights, key=lambda queue: -round(owed.get(queue, 0.0) + weights[queue] / total, 6)))


def charge(
    weights: Mapping[str, float], owed: Credits, got: Mapping[str, int], dry: Collection[str]
) -> dict[str, float]:
    """The credits after a claim that got so many jobs from each queue and found the ``dry`` ones empty.

    A dry queue gives its share away and saves nothing up, so that it comes back without a burst; what it had
    too many of it still owes. With one job a claim this is the smooth weighted round robin as usually
    written.

    >>> charge({"critical": 6, "low": 1}, {}, {"critical": 7}, dry=())
    {'critical': -1.0, 'low': 1.0}
    >>> charge({"critical": 6, "low": 1}, {}, {"critical": 7}, dry=("low",))
    {'critical': 0.0, 'low': 0.0}
    """
    served = sum(got.values())
    sharing = [queue for queue in weights if queue not in dry]
    total = sum(weights[queue] for queue in sharing)
    after: dict[str, float] = {}
    for queue in weights:
        if queue in sharing:
            after[queue] = owed.get(queue, 0.0) + served * weights[queue] / total - got.get(queue, 0)
        else:
            after[queue] = min(0.0, owed.get(queue, 0.0))
    return after
