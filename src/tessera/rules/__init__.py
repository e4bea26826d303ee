"""Pure decisions: values and the time go in, changes come out. No clock, no randomness, no I/O, and only
``model`` is imported.
"""
