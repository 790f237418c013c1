"""What-if: one model asked about many clusters and sizes at once."""
