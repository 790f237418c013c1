"""The planner: clusters, costs, the sharding search and what follows from it. No torch."""
