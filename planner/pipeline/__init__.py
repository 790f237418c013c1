"""Pipelines: schedules, their generators and validation, partitions, critical paths."""
