"""`main.py --dry`: one step of the program without memory, devices or peers."""

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ..training.options import add_arguments, run_options
from ..training.spans import program_tokens_per_step

DRY = "--dry"


def main(folder: Path) -> int:
    """Print as JSON what a dry run of the program in `folder` finds; progress goes to stderr.

    Returns the exit code: 1, with a line on stderr, where the program does not run to the end of a
    step, and 2 on bad input.
    """
    parser = argparse.ArgumentParser(description=f"Run the program in {folder.name} dry")
    add_arguments(parser)
    given = parser.parse_args([word for word in sys.argv[1:] if word != DRY])
    from .dry_run import dry_run
    from .world import DryRunError

    try:
        options = run_options(vars(given), partial(program_tokens_per_step, folder))
        found = dry_run(folder, options, _say)
    except DryRunError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    print(json.dumps(asdict(found)))
    return 0


def _say(text: str) -> None:
    print(f"dry run: {text}", file=sys.stderr, flush=True)
