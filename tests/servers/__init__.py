"""Database servers for the tests: one that already listens if that is allowed, else one of our own, started
when the first test needs it and ended with the run.
"""
