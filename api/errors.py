"""What goes wrong, as one class of errors: MeshwrightError, whichever room says it."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from meshwright.ir.errors import MeshwrightError

P = ParamSpec("P")
T = TypeVar("T")


class RunFailedError(MeshwrightError):
    """A run that ended otherwise than well.

    code: the exit code: 1 a rank died, 2 refused input, 3 no progress. said: all that its ranks
    said of it, of which the message is the last complaint.
    """

    def __init__(self, code: int, said: str) -> None:
        complaints = [line for line in said.splitlines() if line.startswith("error: ")]
        super().__init__(
            complaints[-1].removeprefix("error: ")
            if complaints
            else f"the run ended with exit code {code}"
        )
        self.code, self.said = code, said


def one_class(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function raise MeshwrightError for each ValueError of the rooms below.

    What the system says of files and folders stays an OSError.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except MeshwrightError:
            raise
        except ValueError as error:
            raise MeshwrightError(str(error)) from error

    return wrapped
