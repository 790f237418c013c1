"""A plan as the simulator sees it: step model, memory, the simulated step."""
