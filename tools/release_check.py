"""Build wheel and sdist into build/dist, and use the wheel as a new user would.

    python tools/release_check.py [--torch torch==2.13.0] [--keep FOLDER]

The sdist must build the same wheel as the checkout. The wheel is then installed into an empty
virtual environment outside of the checkout, where the demo job is trained, a model is planned and
a checkpoint exported. Ends at the first step that fails, with what that step printed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "build" / "dist"
# What a new user types: after the install, and after that of the extra `hf`. Each in the empty
# environment, outside of the checkout.
USES = (
    "python -c 'import meshwright; print(meshwright.__version__, meshwright.__file__)'",
    "meshwright --version",
    "meshwright completion bash",
    "meshwright train demo.toml --set run.steps=40 --out run",
    "meshwright plan llama-1b --cluster h200:8 --seq 2048 --global-batch 32 -o plan.txt",
    "meshwright compile plan.txt -o program",
)
USES_OF_HF = (
    "meshwright export run -o exported",
    "meshwright generate run --prompt 'def ' --max-tokens 16 --temperature 0",
)
# The last lines of a step's output are shown.
LINES_SHOWN = 2


def main() -> None:
    """Build, compare, install and use."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", default="torch", help="what pip installs before the wheel")
    parser.add_argument("--keep", type=Path, help="where to work; kept (default: removed)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        wheel = build(folder)
        use(folder, wheel, arguments.torch)
    print("release-check: all steps done")


def build(folder: Path) -> Path:
    """Write sdist and wheel into build/dist; return the wheel.

    Ends the process where the sdist builds another wheel than the checkout.
    """
    # setuptools sweeps what earlier builds left there into the wheel.
    for stale in (DIST, ROOT / "build" / "lib"):
        shutil.rmtree(stale, ignore_errors=True)
    step(f"{sys.executable} -m build --outdir {DIST} .", ROOT)
    wheel, sdist = next(DIST.glob("*.whl")), next(DIST.glob("*.tar.gz"))
    # `build` makes its wheel from the sdist; the other is made from the checkout.
    step(f"{sys.executable} -m pip wheel -q --no-deps -w {folder / 'checkout'} .", ROOT)
    compare(wheel, next((folder / "checkout").glob("*.whl")))
    for path in (wheel, sdist):
        print(f"  {path.name}: {path.stat().st_size / 1024:.0f} KiB")
    return wheel


def compare(wheel: Path, other: Path) -> None:
    """End the process where two wheels hold other files, with the names of those."""
    held, expected = contents(wheel), contents(other)
    names = sorted(n for n in held.keys() | expected.keys() if held.get(n) != expected.get(n))
    if names:
        sys.exit(f"the sdist builds another wheel than the checkout: {', '.join(names)}")
    print(f"  {len(held)} files, the same from the sdist and from the checkout")


def contents(wheel: Path) -> dict[str, int]:
    """Return the checksum of each file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


def use(folder: Path, wheel: Path, torch: str) -> None:
    """Install the wheel into an empty environment below `folder`, and use it there."""
    venv.create(folder / "venv", with_pip=True)
    work = folder / "work"
    work.mkdir()
    shutil.copy(ROOT / "examples" / "demo.toml", work)
    first = [f"python -m pip install -q {what}" for what in (torch, str(wheel))]
    second = [f"python -m pip install -q '{wheel}[hf]'"]
    for command in (*first, *USES, *second, *USES_OF_HF):
        step(command, work, folder / "venv")


def step(command: str, where: Path, environment: Path | None = None) -> None:
    """Run a command line and print what it took; end the process where it fails."""
    print(f"$ {command}", flush=True)
    # Nothing of the environment that runs the check may reach the empty one.
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_"))}
    if environment:
        variables["PATH"] = f"{environment / 'bin'}:{variables['PATH']}"
    began = time.monotonic()
    done = subprocess.run(
        command, shell=True, cwd=where, env=variables, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nexit code {done.returncode}: {command}")
    for line in done.stdout.splitlines()[-LINES_SHOWN:]:
        print(f"  {line}")
    print(f"  {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
