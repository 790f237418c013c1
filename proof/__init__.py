"""Proof: the emitted one-rank program of a captured model against the module itself."""
