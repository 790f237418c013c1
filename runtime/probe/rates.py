"""Sizes at which a preflight reads, and a plan says what it assumes."""

BYTES = {"cuda": 2**28, "cpu": 2**20}
