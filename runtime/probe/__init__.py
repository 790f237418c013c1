"""Measures the devices at hand: what a cost model asks of a machine."""
