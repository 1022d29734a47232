"""Teachers: which task a learner trains on next, from what it has learned so far."""
