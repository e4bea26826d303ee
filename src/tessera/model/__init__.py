"""Values and nothing else: what a job, a lease, a change, an answer is. No I/O, no clock, no decisions."""
