"""The parser of every command: what it refuses is one line, with the nearest word that it knows."""

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from meshwright.runtime.metrics.colour import painted

_KINDS = {int: "a whole number, such as 1000", float: "a number, such as 0.001"}


def _no_other(option: str) -> str:
    return ""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line on stderr and exit code 2.

    instead: says what to give in place of an option that this command does not have, "" where
    nothing stands for it.
    """

    instead: Callable[[str], str] = staticmethod(_no_other)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and end with exit code 2."""
        text = message.removeprefix("argument ")
        if text.endswith("expected one argument"):
            text += ", as OPTION=VALUE where it begins with a dash"
        self.exit(2, f"{painted('error:', 'error', sys.stderr)} {text}; see {self.prog} --help\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does, but for unknown words, which are refused, options first: a
        mistyped option is not one that is missing."""
        words = sys.argv[1:] if args is None else list(args)
        for word in self._own(words):
            self._check_option(word.partition("=")[0])
        parsed, more = super().parse_known_args(words, namespace)
        if more:
            self.error(self._too_many(more[0]))
        return parsed, more

    def _too_many(self, word: str) -> str:
        if word.startswith("-"):
            return f"unknown option {word}"
        takes = [str(a.metavar or a.dest) for a in self._get_positional_actions()]
        held = " ".join(takes) or "nothing"
        return f"{word!r} is a word too many: {self.prog} takes {held} and options"

    def _own(self, words: list[str]) -> Iterable[str]:
        """Yield words before a command below this one, or before `--`, that are long options."""
        if self._subparsers is not None:
            words = list(takewhile(lambda word: word.startswith("-"), words))
        for word in takewhile(lambda word: word != "--", words):
            if word.startswith("--") and " " not in word:
                yield word

    def _check_option(self, name: str) -> None:
        if not any(option.startswith(name) for option in self._option_string_actions):
            self.error(f"unknown option {name}{self._hint(name)}")

    def _hint(self, name: str) -> str:
        if instead := self.instead(name):
            return f"; give {instead}"
        return near(name.replace("_", "-"), set(self._option_string_actions) - {"--help"})

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices if choice != ""]
            hint = near(str(value), known)
            self.error(f"{_called(action)} {value}: unknown{hint}; give one of {', '.join(known)}")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            kind = getattr(action.type, "kind", action.type)
            if kind not in _KINDS:
                raise
            self.error(f"{_called(action)} {arg_string}: give {_KINDS[kind]}")


def near(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word that is nearest to a mistyped one, "" where none is near."""
    found = difflib.get_close_matches(word.lower(), list(known), 1, 0.55)
    return f"; did you mean {found[0]}" if found else ""


def _called(action: argparse.Action) -> str:
    return (action.option_strings or [str(action.metavar or action.dest)])[-1]
