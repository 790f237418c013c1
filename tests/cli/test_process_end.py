"""A command's process ends as Python ends one, but for its objects."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import atexit, sys, threading, time
from meshwright.commands.process_end import end_process

class Held:
    def __del__(self):
        print("taken apart")

held = Held()
def late():
    time.sleep(0.3)
    print("thread done")

threading.Thread(target=late).start()
atexit.register(lambda: print("registered"))
print("printed")
print("told", file=sys.stderr)
end_process(7)
"""


def test_threads_end_registered_functions_run_and_text_is_written(tmp_path: Path) -> None:
    """`atexit._run_exitfuncs`, which is private to Python, calls them as an end does."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "told\n")
    assert done.stdout.split("\n") == ["printed", "thread done", "registered", ""]


def test_nobody_reads_the_last_words() -> None:
    code = "print(1); from meshwright.commands.process_end import end_process; end_process(0)"
    script = f"PYTHONUNBUFFERED= {sys.executable} -c '{code}' | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("141\n", "")
