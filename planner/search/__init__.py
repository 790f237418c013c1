"""The search: pins, candidates, their costs, the best plan found, and why nothing fits."""
