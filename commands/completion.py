"""`meshwright completion`: a script that completes commands, options and values in a shell."""

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from .output import print_result
from .parsers import add_command

INSTALLS = """\
Print a script that completes commands, options and values. bash: meshwright completion bash >
~/.local/share/bash-completion/completions/meshwright. zsh: put eval "$(meshwright completion zsh)"
behind compinit in ~/.zshrc. fish: meshwright completion fish >
~/.config/fish/completions/meshwright.fish."""


@dataclass(frozen=True)
class Value:
    """Value of an option or an argument. words: those to offer, files as well where `files`."""

    words: tuple[str, ...] = ()
    files: bool = False


@dataclass(frozen=True)
class Option:
    """An option's spellings, help, and value; a flag has None."""

    names: tuple[str, ...]
    text: str
    value: Value | None


@dataclass(frozen=True)
class Place:
    """A command: its words from the program's name on, what may follow, and its help."""

    path: str
    text: str
    options: tuple[Option, ...]
    below: tuple[tuple[str, str], ...]
    argument: Value


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(commands, "completion", partial(_run, commands), INSTALLS)
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="whose script to print")


def _run(commands: Any, arguments: argparse.Namespace) -> None:
    script = SCRIPTS[arguments.shell](list(places("", "", commands)))
    print_result(arguments, {"shell": arguments.shell, "script": script}, script.rstrip("\n"))


def places(path: str, text: str, commands: Any) -> Iterator[Place]:
    """Give a command that has others below it, and all of those; commands: argparse's action."""
    helps = {entry.dest: entry.help or "" for entry in commands._choices_actions}
    yield Place(path, text, (), tuple(helps.items()), Value())
    for name, parser in commands.choices.items():
        below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if below:
            yield from places(f"{path} {name}".strip(), helps[name], below[0])
        else:
            yield _place(f"{path} {name}".strip(), helps[name], parser)


def _place(path: str, text: str, parser: argparse.ArgumentParser) -> Place:
    options = [
        Option(tuple(a.option_strings), a.help or "", None if a.nargs == 0 else _value(a))
        for a in parser._actions
        if a.option_strings
    ]
    taken = [_value(a) for a in parser._actions if not a.option_strings]
    words = tuple(word for value in taken for word in value.words)
    return Place(path, text, tuple(options), (), Value(words, any(v.files for v in taken)))


def _value(action: argparse.Action) -> Value:
    """What has no choices and is no number may be a file."""
    if action.choices:
        return Value(tuple(str(choice) for choice in action.choices if choice != ""))
    if action.dest == "model":
        from meshwright.models.presets import PRESETS

        return Value(tuple(PRESETS), files=True)
    if action.dest == "cluster":
        from meshwright.planner.hardware.catalogue import CATALOGUE

        return Value(("auto", *(f"{name}:" for name in CATALOGUE)), files=True)
    return Value(files=action.type not in (int, float))


def _bash(found: list[Place]) -> str:
    """Return a function over COMP_WORDS, with a case a command and a case an option's value."""
    return "\n".join(
        [
            "_meshwright() {",
            "  local at= word words= files= options= before=${COMP_WORDS[COMP_CWORD-1]}",
            "  local current=${COMP_WORDS[COMP_CWORD]}",
            '  for word in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}"; do',
            f'    case "$at $word" in {_patterns(found)}) at="${{at:+$at }}$word" ;; esac',
            "  done",
            '  case "$at" in',
            *(f"    {_quoted(place.path)}) {_offered(place)} ;;" for place in found),
            "  esac",
            '  case "$at|$before" in',
            *_bash_values(found),
            '    *) case "$current" in -*) words=$options files= ;; esac ;;',
            "  esac",
            '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "  local IFS=$'\\n'",  # names of files may hold blanks
            '  if [ -n "$files" ]; then COMPREPLY+=($(compgen -f -- "$current")); fi',
            "}",
            "complete -o filenames -F _meshwright meshwright",
            "",
        ]
    )


def _patterns(found: list[Place]) -> str:
    return "|".join(_quoted(f" {p.path}" if " " not in p.path else p.path) for p in found[1:])


def _offered(place: Place) -> str:
    names = " ".join(name for option in place.options for name in option.names)
    words = " ".join([*(name for name, _ in place.below), *place.argument.words])
    files = "yes" if place.argument.files else ""
    return f"options={_quoted(names)} words={_quoted(words)} files={files}"


def _bash_values(found: list[Place]) -> Iterator[str]:
    for place in found:
        for option in place.options:
            if option.value is not None:
                where = "|".join(_quoted(f"{place.path}|{name}") for name in option.names)
                files = "yes" if option.value.files else ""
                words = _quoted(" ".join(option.value.words))
                yield f"    {where}) words={words} files={files} ;;"


def _quoted(text: str) -> str:
    return shlex.quote(text)


def _zsh(found: list[Place]) -> str:
    """Return bash's script behind zsh's own layer for such scripts."""
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(found)}"


def _fish(found: list[Place]) -> str:
    """Return a line for each command and option, on the condition of the command it stands in."""
    known = " ".join(_quoted(place.path) for place in found[1:])
    return "\n".join(
        [
            "function __meshwright_at",
            "    set -l at",
            "    for word in (commandline -opc)[2..]",
            '        set -l next (string trim -- "$at $word")',
            f"        contains -- $next {known}; and set at $next",
            "    end",
            '    test "$at" = "$argv"',
            "end",
            "complete -c meshwright -f",
            *(line for place in found for line in _fish_place(place)),
            "",
        ]
    )


def _fish_place(place: Place) -> Iterator[str]:
    at = f"complete -c meshwright -n {_quoted(f'__meshwright_at {place.path}'.strip())}"
    for name, text in place.below:
        yield f"{at} -a {name} -d {_fish_quoted(text)}"
    if place.argument.words:
        yield f"{at} -a {_quoted(' '.join(place.argument.words))}"
    if place.argument.files:
        yield f"{at} -F"
    for option in place.options:
        names = " ".join(
            f"-{'l' if n.startswith('--') else 's'} {n.lstrip('-')}" for n in option.names
        )
        yield f"{at} {names}{_fish_value(option.value)} -d {_fish_quoted(option.text)}"


def _fish_value(value: Value | None) -> str:
    if value is None:
        return ""
    words = f" -a {_quoted(' '.join(value.words))}" if value.words else ""
    return f" -r {'-F' if value.files else '-f'}{words}"


def _fish_quoted(text: str) -> str:
    """Quote a help's first clause: fish shows one line, and escapes quotes by a backslash."""
    first = text.replace("%(default)s", "as shown by --help").split(";")[0]
    return "'" + first.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
