"""A terminal, for tests of what is drawn on one."""

import io


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
