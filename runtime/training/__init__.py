"""A training run of one rank: data in, steps, evaluations, checkpoints."""
