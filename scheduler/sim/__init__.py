"""A discrete-event cluster that drives the same scheduler as the live runtime does."""
