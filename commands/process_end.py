"""The end of a command's process, without taking its objects apart.

Python goes through every object once more before a process ends: a second of what tracing makes.
Here its other duties are done: threads are waited for, functions registered with `atexit` are
called, what was printed is written out.
"""

import atexit
import os
import sys
import threading
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """End this process with an exit code; 141 where nobody reads what it printed last."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = 141
    os._exit(code)
