"""Leave the dispatch modes under which a module is built or traced: torch's own, wrapped here."""

from contextlib import AbstractContextManager

from torch.utils._python_dispatch import _disable_current_modes


def without_modes() -> AbstractContextManager[object]:
    """Return a context in which no dispatch mode sees what is called; tensors that are fake remain
    so."""
    return _disable_current_modes()
