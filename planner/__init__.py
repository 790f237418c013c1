"""The planner: clusters, costs, placements, saved values, cuts and schedules; no torch."""
