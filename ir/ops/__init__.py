"""Ops: what every room asks of an op, defined once."""
