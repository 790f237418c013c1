"""The log of a run: metrics.jsonl, trackers, pictures, progress lines, what the device says."""
