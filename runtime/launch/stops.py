"""Signals that ask a run to save and stop."""

import signal

# Until a rank can, they wait (see StopSignal in worker.py).
STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
