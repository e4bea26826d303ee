"""Operations: read, ask a rule, commit. Written once for both colours; every door calls these and has no
rules of its own.
"""
