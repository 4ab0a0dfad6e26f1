"""Which worker serves a turn: baselines and ours, all behind `RoutePolicy`."""
