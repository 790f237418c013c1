"""The report as one page for a browser: what was decided, why, and what limits it."""
