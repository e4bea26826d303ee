"""Stores: seven nouns, two verbs that matter (claim and commit), and reads. No store knows a capability."""
