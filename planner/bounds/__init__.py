"""Lower bounds of a step: analytic, over all partitions, and by linear programming."""
