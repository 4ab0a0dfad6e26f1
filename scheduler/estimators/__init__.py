"""How much is left? Forecasts of work from facts that do not depend on where it was served.

A tool's return comes before the tokens it provokes and does not depend on the worker that will
serve them. So estimators predict *tokens* from what has been seen of the attempt and its group,
and never from seconds, queues or placements; a cost model turns tokens into seconds for each
candidate worker. That is what "causality-guided" means here: conditioning on history, with a
factorisation that lets "had it gone elsewhere" be answered. It is not causal inference.
"""
