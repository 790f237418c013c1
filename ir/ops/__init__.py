"""Ops: what every room asks of an op, defined once; one file a kind of op."""
