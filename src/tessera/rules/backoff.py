"""How long to wait before the next attempt."""

from __future__ import annotations

import math

from tessera.model.job import Terms


def delay_ms(terms: Terms, failures: int, random: float) -> int:
    """The wait after so many failures, in [d (1 - jitter), d] with d = min(cap, base x factor^(failures -
    1)).

    A list of delays replaces the exponential form, its last entry repeated. ``random`` is uniform in [0, 1).
    """
    if terms.backoff_delays_ms:
        longest = terms.backoff_delays_ms[min(failures, len(terms.backoff_delays_ms)) - 1]
    else:
        longest = _exponential(terms.backoff_base_ms, terms.backoff_factor, terms.backoff_cap_ms, failures)
    return math.ceil(longest * (1 - terms.backoff_jitter * random))


def crash_delay_ms(terms: Terms, crashes: int, random: float) -> int:
    """The wait after so many crashes: doubled each time, at most an hour, so that siblings of a suspect pass
    it.
    """
    longest = _exponential(terms.crash_backoff_ms, 2.0, 3_600_000, crashes)
    return math.ceil(longest * (1 - terms.backoff_jitter * random))


def _exponential(base_ms: int, factor: float, cap_ms: int, count: int) -> int:
    # Decided before it is taken: factor ** 1,000,000 is no float, and 2 ** 64 ms are above every cap.
    if base_ms and (count - 1) * math.log2(factor) >= 64:
        return cap_ms
    return int(min(cap_ms, base_ms * factor ** (count - 1))) if base_ms else 0
