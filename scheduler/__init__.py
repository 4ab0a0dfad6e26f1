"""Pure scheduling decisions and the simulator that tests them.

No torch, ray, network, clock or randomness of its own: time and random generators are arguments.
"""
