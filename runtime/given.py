"""Names and paths that a run is given, checked before torch is imported or a rank is started."""

import difflib
import tempfile
from collections.abc import Mapping
from pathlib import Path

_DATA = {
    "file": "PATH",
    "shards": "DIR",
    "pairs": "DIR",
    "images": "DIR",
    "mix": "FILE.toml",
    "hf-stream": "NAME",
    "py": "module:name",
    "random": "VOCAB",
    "fixed": "VOCAB",
}
DATA_KINDS = ", ".join(["demo", *(f"{kind}:{rest}" for kind, rest in _DATA.items())])


class GivenError(ValueError):
    """A name or a path that leads to nothing of its kind."""


def check_given(program: Path, options: Mapping[str, object]) -> None:
    """Raise GivenError for what every rank of a program would refuse. options: of a run, by name;
    one that is missing is not looked at."""
    check_program(program)
    check_options(options)
    if "out" in options and _same(Path(str(options["out"])), program):
        raise GivenError(
            f"--out {options['out']} is the program's own folder; give another, such as "
            f"{program / 'run'}"
        )


def check_options(options: Mapping[str, object]) -> None:
    """Raise GivenError for options of a run, by name, that name nothing."""
    if "out" in options:
        check_named("--out", str(options["out"]))
        check_folder_place("--out", Path(str(options["out"])))
    if Path(fast := str(options.get("fast_dir") or "")).is_file():
        raise GivenError(f"--fast-dir {fast} is a file; give a folder")
    check_resume(str(options.get("resume") or ""))
    check_weights(str(options.get("weights") or ""))
    for name in ("data", "eval_data"):
        given = options.get(name)
        if given is not None and (given or name == "data"):
            check_data(f"--{name.replace('_', '-')}", str(given))
    _check_evaluated(str(options.get("eval_data") or ""))


def check_named(option: str, path: str) -> None:
    """Raise GivenError for a path that is no name, which would be the current folder's."""
    if not path:
        raise GivenError(f"{option} '': names nothing; give a path, or . for the current folder")


def _check_evaluated(name: str) -> None:
    """Raise GivenError for data of --eval-data that has no end or no order of its own."""
    if name.partition(":")[0] in ("py", "hf-stream"):
        what = "rows of your own code" if name.startswith("py:") else "a stream"
        raise GivenError(
            f"--eval-data {name}: an evaluation reads the windows of a corpus, not {what}; write "
            "its text as shards with meshwright data tokenize and give shards:DIR, or give "
            "file:PATH or demo"
        )


def _lack(path: Path, else_: str) -> str:
    """Say why a path is not the folder that it should be; else_: of a folder."""
    if path.is_dir():
        return else_
    return "it is a file" if path.exists() else "there is no such folder"


def _same(first: Path, second: Path) -> bool:
    return first.absolute() == second.absolute()


def check_place(option: str, path: Path) -> None:
    """Raise GivenError where nothing can be written at a path that an option gives."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if there != path and not there.is_dir():
        raise GivenError(
            f"{option} {path}: nothing can be written to {there} (Not a directory); give another "
            "folder"
        )
    try:
        tempfile.TemporaryDirectory(dir=there if there.is_dir() else there.parent).cleanup()
    except OSError as error:
        raise GivenError(
            f"{option} {path}: nothing can be written to {there} ({error.strerror}); give another "
            "folder"
        ) from None


def check_folder_place(option: str, path: Path) -> None:
    """Raise GivenError where no folder can be, or be made, at a path that an option gives."""
    if path.exists() and not path.is_dir():
        raise GivenError(f"{option} {path} is a file; give a folder")
    check_place(option, path)


def check_no_weights(out: Path) -> None:
    """Raise GivenError where weights lie in a folder: a reader takes a `model.safetensors` before
    any index, so that they would be read in place of new ones. What a killed command left counts
    for nothing."""
    found = (path.name for path in out.glob("*.safetensors*"))
    others = sorted(name for name in found if not name.endswith(".part"))
    if others:
        raise GivenError(
            f"{out} holds {len(others)} file{'s' * (len(others) > 1)} of weights already "
            f"({others[0]}); give another folder"
        )


def check_file_place(option: str, path: Path) -> None:
    """Raise GivenError where no file can be written at a path that an option gives."""
    if path.is_dir():
        raise GivenError(f"{option} {path} is a folder; give a file")
    if path.exists() and not path.is_file():
        raise GivenError(f"{option} {path} is a device, pipe or socket; give a file")
    check_place(option, path)


def check_picture(option: str, path: Path) -> None:
    """Raise GivenError where no picture can be written at a path that an option gives."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise GivenError(f"{option} {path}: give a name that ends with .png, .svg or .pdf")
    check_file_place(option, path)


def check_program(folder: Path) -> None:
    """Raise GivenError where a path is not a program's folder."""
    if all((folder / name).is_file() for name in ("main.py", "layout.py")):
        return
    what = _lack(folder, "holds no program (main.py, layout.py)")
    way = "write one from a plan's file with: meshwright compile PLAN -o DIR"
    if (folder / "program" / "main.py").is_file():
        way = f"give {folder / 'program'}, or go on with the run: meshwright resume {folder}"
    raise GivenError(f"{folder}: {what}; {way}")


def check_resume(path: str) -> None:
    """Raise GivenError for a path that every rank would refuse."""
    if path in ("", "auto") or (Path(path) / "manifest.json").is_file():
        return
    what = _lack(Path(path), "holds no manifest.json")
    raise GivenError(
        f"--resume {path}: {what}; give a checkpoint's folder, such as "
        "OUT/checkpoints/step_00000100, or auto for the newest good one of --out"
    )


def check_weights(path: str) -> None:
    """Raise GivenError for a path that --weights cannot read; "" is none."""
    folder = Path(path)
    if not path or any(folder.glob("*.safetensors")):
        return
    what = _lack(folder, "holds 0 .safetensors files")
    raise GivenError(
        f"--weights {path}: {what}; give a Hugging Face folder, or what meshwright import wrote; "
        "a checkpoint is given as --resume"
    )


def check_checkpoint(path: Path) -> None:
    """Raise GivenError for a path that is neither a checkpoint's folder nor a run's."""
    if (path / "manifest.json").is_file() or (path / "checkpoints").is_dir():
        return
    what = _lack(path, "holds no manifest.json")
    raise GivenError(
        f"{path}: {what}; give a run's folder, or a checkpoint's, such as "
        "run/checkpoints/step_00000100"
    )


def check_hugging_face(path: Path) -> None:
    """Raise GivenError for a path that is no folder of safetensors, or is a checkpoint."""
    if (path / "manifest.json").is_file():
        raise GivenError(
            f"{path} is a checkpoint: meshwright export writes it as a Hugging Face folder, and "
            "run --resume goes on from it"
        )
    if not any(path.glob("*.safetensors")):
        what = _lack(path, "holds 0 .safetensors files")
        raise GivenError(f"{path}: {what}; give a Hugging Face folder")


def check_shards(path: Path) -> None:
    """Raise GivenError for a path that is no folder of shards."""
    if (path / "manifest.json").is_file():
        return
    what = _lack(path, "holds no manifest.json")
    raise GivenError(f"{path}: {what}; make a folder of shards with: meshwright data tokenize")


def check_data(option: str, name: str) -> None:
    """Raise GivenError for data of no kind that there is, or whose file cannot be opened. option:
    the one that names it."""
    kind, colon, rest = name.partition(":")
    if name == "demo" or (kind in _DATA and rest):
        _check_readable(f"{option} {name}", kind, Path(rest))
        return
    words = [word if colon else f"{word}:" for word in _DATA]
    close = difflib.get_close_matches(kind, ["demo", *words], 1)
    hint = f"did you mean {close[0]}{colon}{rest}; " if close else ""
    if (Path(name) / "manifest.json").is_file():
        hint = f"did you mean shards:{name}; "
    elif Path(name).is_file():
        hint = f"did you mean {'mix' if name.endswith('.toml') else 'file'}:{name}; "
    raise GivenError(f"{option} {name or repr(name)}: unknown corpus; {hint}give {DATA_KINDS}")


def _check_readable(said: str, kind: str, path: Path) -> None:
    way = "; make the folder with: meshwright data tokenize" if kind in _MADE_OF else ""
    for folder in _MADE_OF.get(kind, ()):
        _open(said, path / folder / "manifest.json", way)
    if kind in ("file", "mix"):
        _open(said, path, way)
    if kind == "images":
        _open(said, path / "images.npy", "; write it with numpy.save, [images, C, H, W]")


# The folders of shards in a folder of data, by its kind.
_MADE_OF = {"shards": (".",), "pairs": ("source", "target"), "images": ("text",)}


def _open(said: str, file: Path, way: str) -> None:
    try:
        open(file, "rb").close()
    except OSError as error:
        raise GivenError(f"{said}: cannot read {file}: {error.strerror}{way}") from None
