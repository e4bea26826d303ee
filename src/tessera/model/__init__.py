"""Values and nothing else: what a job, a lease, a change and an answer are. No I/O, no clock, no decisions."""
