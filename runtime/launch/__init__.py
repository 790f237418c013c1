"""Processes: the launcher, each rank's start, heartbeats and the watchdog."""
