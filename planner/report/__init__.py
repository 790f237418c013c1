"""Reports: why a plan is as it is, what it rests on, and how two plans differ."""
