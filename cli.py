"""Commands (`meshwright --help` lists them): files, exit codes and messages; no logic."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright import __version__

if TYPE_CHECKING:  # the rooms load when a command needs them
    from meshwright.ir.plan import Plan
    from meshwright.models import ModelSource
    from meshwright.planner.hardware.cluster import Cluster
    from meshwright.runtime.job import Job


def main(argv: list[str] | None = None) -> int:
    """Run a command; 0 on success, 2 on bad input with one message and no
    traceback, 130 and 143 when Ctrl-C or SIGTERM ended it."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        with _ended_by_sigterm():
            return arguments.run(arguments) or 0
    except BrokenPipeError:  # who read the output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError) as error:
        if arguments.debug:
            raise
        print(f"error: {_one_message(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print("interrupted; nothing was left half-written", file=sys.stderr)
        return 143 if isinstance(interrupt, _Terminated) else 130


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: it removes what is half-written."""


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    def end(*_: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _one_message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="meshwright",
        description="A compiler for training runs: plan a model for a cluster, write one readable "
        "PyTorch program per stage, run it.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _plan_command(commands)
    _compile_command(commands)
    _run_command(commands)
    _train_command(commands)
    _explain_command(commands)
    _diff_command(commands)
    _export_command(commands)
    _import_command(commands)
    _generate_command(commands)
    _plot_command(commands)
    _data_commands(commands)
    return parser


def _command(commands: Any, name: str, run: Callable, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text.split(". ")[0], description=text)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of bad input")
    parser.set_defaults(run=run)
    return parser


def _plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster",
        default="cpu:4",
        metavar="C",
        help="a catalogue name with a count (h200:8, h100:8x16, cpu:2) or a TOML file "
        "(default: %(default)s)",
    )
    parser.add_argument("--seq", type=int, required=True, metavar="N", help="tokens of a row")
    parser.add_argument(
        "--global-batch", type=int, required=True, metavar="N", help="rows of an optimizer step"
    )
    parser.add_argument(
        "--dtype", default="f32", choices=("f32", "bf16", "f64"), help="of parameters and compute"
    )
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="fix a decision, the search takes the rest: pp, dp, tp, micro_batch, zero (0-3), "
        "recompute (cheap, all, none, or value names), schedule (1f1b, gpipe, interleaved, "
        "zb-h1, zbv), chunks (stages a rank, interleaved), cuts, price, shard_weights, "
        "precision (pure, master), reduce_dtype (bf16, f32), optimizer",
    )
    parser.add_argument(
        "--no-search",
        dest="search",
        action="store_false",
        help="take defaults for what is not pinned: pure data parallel, recompute cheap, ZeRO 0",
    )


def _plan_command(commands: Any) -> None:
    parser = _command(
        commands,
        "plan",
        _plan,
        "Plan a model for a cluster. Traces the model without weights or a GPU, decides mesh, "
        "placements, storage, recomputation and schedule, and writes the plan as text.",
    )
    parser.add_argument(
        "model", help="a preset (llama-7b), a TOML file, hf:DIR, or py:module:factory"
    )
    _plan_options(parser)
    parser.add_argument("-o", "--output", default="plan.txt", help="the plan's file")


def _compile_command(commands: Any) -> None:
    parser = _command(
        commands,
        "compile",
        _compile,
        "Write a plan's program: a folder that runs where only torch, numpy and safetensors are.",
    )
    parser.add_argument("plan", help="a plan's file")
    parser.add_argument("-o", "--output", default="program", help="the program's folder")


def _run_options(parser: argparse.ArgumentParser) -> None:
    from meshwright.runtime.options import add_arguments

    add_arguments(parser)
    parser.add_argument("--port", type=int, default=0, help="rendezvous port; 0 takes a free one")


def _run_command(commands: Any) -> None:
    parser = _command(
        commands,
        "run",
        _run,
        "Run a program on this machine, one process a rank, and write its log to a run folder.",
    )
    parser.add_argument("program", help="a program's folder")
    _run_options(parser)


def _train_command(commands: Any) -> None:
    parser = _command(
        commands,
        "train",
        _train,
        "Plan, compile and run from one job file. The job file (TOML) has the tables [plan] and "
        '[run] with the options of those commands by name, and model = "..." at the top. Names '
        "have underscores (save_every for --save-every); --group is groups, --no-search is search "
        "= false.",
    )
    parser.add_argument("job", help="a job's TOML file")
    parser.add_argument("--out", default=None, help="the run folder (overrides the file's)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="a.b=c", help="override a value of the file"
    )


def _explain_command(commands: Any) -> None:
    parser = _command(
        commands,
        "explain",
        _explain,
        "Explain a plan: its decisions, pieces, memory and coverage; or one value, one segment, or "
        "why another decision was not taken.",
    )
    parser.add_argument("plan", help="a plan's file")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--value", metavar="V", help="a value's name, e.g. attention_q_linear")
    which.add_argument("--segment", metavar="S", help="a segment's name: each op's time and bytes")
    which.add_argument(
        "--timeline",
        metavar="FILE",
        type=Path,
        help="draw the simulated step, streams and memory over time: FILE.svg a picture, FILE.json "
        "a trace that Perfetto opens",
    )
    which.add_argument(
        "--why-not",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="search again under this pin and say what it would cost, e.g. tp=4",
    )
    parser.add_argument("--model", metavar="MODEL", help="for --why-not: where the plan's is from")
    _cluster_option(parser)


def _diff_command(commands: Any) -> None:
    parser = _command(
        commands,
        "diff",
        _diff,
        "Compare two plans of one model. Prints the decisions that differ and what each is worth "
        "in step time and peak memory.",
    )
    parser.add_argument("first", help="a plan's file")
    parser.add_argument("second", help="a plan's file")
    _cluster_option(parser)


def _cluster_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster", metavar="C", help="where the plan names a TOML file that has moved: its path"
    )


def _export_command(commands: Any) -> None:
    parser = _command(
        commands,
        "export",
        _export,
        "Write a checkpoint as a Hugging Face folder. Reads one tensor at a time; transformers "
        "loads the result, for our own families as the stock class that computes the same.",
    )
    parser.add_argument(
        "checkpoint", help="a checkpoint's folder, e.g. run/checkpoints/step_00000100"
    )
    parser.add_argument("--model", required=True, help="the model it is of, as given to plan")
    parser.add_argument("-o", "--output", default="export", help="the folder to write")


def _import_command(commands: Any) -> None:
    parser = _command(
        commands,
        "import",
        _import,
        "Take Hugging Face weights over to one of our own models, for run's --weights. For hf:DIR "
        "models --weights reads DIR itself. A config.json in the folder must be of the same model.",
    )
    parser.add_argument("folder", help="a folder of safetensors")
    parser.add_argument("--model", required=True, help="a preset or a TOML file of the same shape")
    parser.add_argument("-o", "--output", default="weights", help="the folder to write")


def _plot_command(commands: Any) -> None:
    parser = _command(
        commands,
        "plot",
        _plot,
        "Draw runs: loss, throughput, memory, predicted against measured, in one picture.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder")
    parser.add_argument("-o", "--output", default="runs.png", help="a .png, .svg or .pdf file")


def _generate_command(commands: Any) -> None:
    parser = _command(
        commands,
        "generate",
        _generate,
        "Print samples of a checkpoint or a Hugging Face folder. Runs on one device through "
        "transformers, with its KV cache.",
    )
    parser.add_argument("weights", help="a checkpoint's folder, or a Hugging Face folder")
    parser.add_argument("--model", help="of a checkpoint: the model it is of, as given to plan")
    parser.add_argument("--prompt", default="", help="text that the samples go on from")
    parser.add_argument(
        "--tokenizer", metavar="DIR", help="a Hugging Face tokenizer's folder; bytes without one"
    )
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="(default: 128)")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="(default: 1)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 takes the likeliest")
    parser.add_argument("--top-k", type=int, default=0, help="of the k likeliest, 0 for all")
    parser.add_argument("--top-p", type=float, default=1.0, help="of the likeliest with share p")
    parser.add_argument("--seed", type=int, default=0)


def _data_commands(commands: Any) -> None:
    text = "Make, check and describe training data. What tokenize writes, run reads as shards:DIR."
    parser = commands.add_parser("data", help=text.split(". ")[0], description=text)
    below = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _tokenize_command(below)
    for name, run, says in (
        ("info", _data_info, "Say what a folder of shards holds, and what of it was checked."),
        ("verify", _data_verify, "Compare every shard with the size and SHA-256 in the manifest."),
    ):
        _command(below, name, run, says).add_argument("folder", help="a folder of shards")


def _tokenize_command(commands: Any) -> None:
    parser = _command(
        commands,
        "tokenize",
        _tokenize,
        "Tokenize documents into memory-mapped shards with a manifest. The result is the same, "
        "byte for byte, for any number of workers; a command that was killed goes on behind its "
        "last finished shard when it is given again.",
    )
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="a text file (one document), a jsonl file (a document a line), a folder of them, or "
        "hf:NAME_OR_PATH[:SPLIT], a Hugging Face dataset (needs the library datasets)",
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="the shards' folder, empty at first"
    )
    parser.add_argument(
        "--tokenizer",
        default="bytes",
        metavar="T",
        help="bytes (a token a byte, NUL ends a document), a tokenizers JSON file, or a Hugging "
        "Face folder with a tokenizer.json (default: bytes)",
    )
    parser.add_argument(
        "--eos",
        default="",
        metavar="TOKEN",
        help="the token that ends a document, or none; a Hugging Face folder names its own",
    )
    parser.add_argument(
        "--format",
        default="auto",
        choices=("auto", "text", "jsonl"),
        help="of files; auto goes by the suffix: .jsonl, .ndjson, .json (default: auto)",
    )
    parser.add_argument(
        "--field", default="text", help="of a jsonl line or dataset row (default: text)"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one a core)")
    parser.add_argument(
        "--shard-tokens",
        type=int,
        default=2**27,
        metavar="N",
        help="tokens of a shard; a killed command loses at most one (default: 134217728)",
    )
    parser.add_argument(
        "--on-bad",
        default="stop",
        choices=("stop", "skip"),
        help="what a document that cannot be read does; both name it (default: stop)",
    )
    parser.add_argument(
        "--held-out",
        default="",
        metavar="DIR",
        help="a folder of shards of the same tokenizer that evaluations of this data read",
    )


# The commands


def make_plan_of(
    model: str, options: argparse.Namespace, say: Callable[[str], None]
) -> tuple["Plan", str]:
    """The plan of a model spec under plan options, and the search's report ("" without one)."""
    from meshwright.ir.capture.export import trace
    from meshwright.models import load_model
    from meshwright.planner.clock import CLOCK
    from meshwright.planner.hardware.cluster import parse_cluster
    from meshwright.planner.report.report import search_report
    from meshwright.planner.search.demands import check_pins
    from meshwright.planner.search.make_plan import make_plan
    from meshwright.planner.search.pins import parse_pins
    from meshwright.planner.search.search import search_plan

    cluster = parse_cluster(options.cluster)
    pins = parse_pins(options.pin)
    for name in ("seq", "global_batch"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(options, name)}: at least 1")
    searches = getattr(options, "search", True)
    check_pins(cluster, options.global_batch, options.dtype, pins, search=searches)
    source = load_model(model)
    if source.max_seq is not None and options.seq > source.max_seq:
        raise ValueError(
            f"--seq {options.seq} is past the {source.max_seq} positions of {source.name}"
        )
    say(f"tracing {source.name}")
    with CLOCK.layer("tracing"):
        traced = trace(source.build, source.name, options.dtype, source.vocab_size)
    say(f"{len(traced.segmented.instances)} segments, {len(traced.joints)} of them unique")
    sizes = {"seq": options.seq, "global_batch": options.global_batch}
    if not searches:
        return make_plan(traced, cluster, **sizes, pins=pins, progress=say), ""
    plan, found, prediction = search_plan(traced, cluster, **sizes, pins=pins, progress=say)
    return plan, search_report(plan, found, prediction)


def _say_to(arguments: argparse.Namespace) -> Callable[[str], None]:
    started = time.perf_counter()

    def say(text: str) -> None:
        if not arguments.json:
            print(f"[{time.perf_counter() - started:6.1f} s] {text}", flush=True)

    return say


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def _plan(arguments: argparse.Namespace) -> None:
    from meshwright.ir.text.plan_text import format_plan, plan_hash
    from meshwright.planner.report.explain import summary

    if Path(arguments.output).is_dir():
        raise ValueError(f"-o {arguments.output} is a folder; give the file that the plan goes to")
    plan, report = make_plan_of(arguments.model, arguments, _say_to(arguments))
    _write(Path(arguments.output), format_plan(plan))
    if report:
        _write(Path(f"{arguments.output}.report.txt"), report)
    if arguments.json:
        print(json.dumps({"plan": arguments.output, "hash": plan_hash(plan), **dict(plan.costs)}))
        return
    print(report or summary(plan))
    why = f"; why: {arguments.output}.report.txt" if report else ""
    print(f"plan written to {arguments.output}{why}")


def _read_plan(path: str) -> "Plan":
    from meshwright.ir.errors import ParseError
    from meshwright.ir.text.plan_text import parse_plan

    try:
        return parse_plan(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # of the text, or of its decoding
        raise ParseError(f"{path}: {error}") from None


def write_program(plan: "Plan", folder: Path) -> list[str]:
    """Write the program's files and its copy of the runtime; returns the paths."""
    import shutil

    import meshwright.runtime
    from meshwright.codegen.program import emit

    files = emit(plan)
    for name, text in files.items():
        _write(folder / name, text)
    (folder / "launch.sh").chmod(0o755)
    (folder / "job.sbatch").chmod(0o755)
    source = Path(meshwright.runtime.__file__).parent
    shutil.copytree(
        source,
        folder / "runtime",
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__", "*.pyc"),
    )
    return sorted(files)


def _compile(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.output)
    files = write_program(_read_plan(arguments.plan), folder)
    if arguments.json:
        print(json.dumps({"program": str(folder), "files": files}))
        return
    print(f"program written to {folder}/: {', '.join(files)}")
    print(f"run it with: meshwright run {folder} --data demo --steps 100")


def _run(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from meshwright.runtime.metrics import last_rows
    from meshwright.runtime.options import run_options
    from meshwright.runtime.start import start_program

    options = run_options(vars(arguments))
    folder = Path(arguments.program)
    code = start_program(folder, asdict(options), arguments.port, quiet=arguments.json)
    if arguments.json and code == 0:
        print(json.dumps({"run": options.out, **last_rows(Path(options.out) / "metrics.jsonl")}))
    return code


def _train(arguments: argparse.Namespace) -> int:
    from meshwright.runtime.job import load_job
    from meshwright.runtime.metrics import last_rows
    from meshwright.runtime.start import check_resume, start_with_restarts
    from meshwright.runtime.trackers import check_tracker

    given = [f"run.out={json.dumps(arguments.out)}"] if arguments.out else []
    job = load_job(Path(arguments.job), [*arguments.set, *given])
    check_resume(str(job.run.get("resume", "")))
    check_tracker(job.run.get("track", "none"))
    out = Path(job.run.get("out", "run"))
    options = argparse.Namespace(**job.plan)
    say = _say_to(arguments)
    _write_job(job, out, options, arguments)
    where = f"plan: {out / 'plan.txt'}; program: {out / 'program'}"
    say(where)
    run = {**job.run, "out": str(out)}
    code = start_with_restarts(
        out / "program", run, job.restarts, say=say, port=0, quiet=arguments.json
    )
    if code == 0 and arguments.json:
        print(json.dumps({"run": str(out), **last_rows(out / "metrics.jsonl")}))
    elif code == 0:
        print(f"{where}; log: {out / 'metrics.jsonl'}")
    return code


def _write_job(
    job: "Job", out: Path, options: argparse.Namespace, arguments: argparse.Namespace
) -> None:
    """Plan, report, program and the resolved job file into the run's folder."""
    from meshwright.ir.text.plan_text import format_plan
    from meshwright.planner.report.explain import summary
    from meshwright.runtime.run_folder import begin_job, check_free

    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; give a folder")
    check_free(out)
    plan, report = make_plan_of(job.model, options, _say_to(arguments))
    aside = begin_job(out, resumes=bool(job.run.get("resume")))
    if aside is not None:
        _say_to(arguments)(f"what an earlier job left in {out} is now in {aside}")
    _write(out / "plan.txt", format_plan(plan))
    if report:
        _write(out / "plan.txt.report.txt", report)
    write_program(plan, out / "program")
    _write(out / "job.toml", job.text)
    if not arguments.json:
        print(summary(plan))


def _explain(arguments: argparse.Namespace) -> None:
    from meshwright.planner.report.explain import explain_value, report
    from meshwright.planner.report.segments import explain_segment

    plan = _read_plan(arguments.plan)
    if arguments.why_not:
        text = _why_not(plan, arguments)
    elif arguments.value:
        text = explain_value(plan, arguments.value)
    elif arguments.segment:
        text = explain_segment(plan, arguments.segment, _cluster_of(plan, arguments))
    elif arguments.timeline:
        text = _timeline(plan, _cluster_of(plan, arguments), arguments.timeline)
    else:
        text = _outdated(plan, arguments) + report(plan)
    print(json.dumps({"text": text}) if arguments.json else text)


def _outdated(plan: "Plan", arguments: argparse.Namespace) -> str:
    """A warning where a plan's numbers are of other decisions; "" where its cluster is not here."""
    from meshwright.planner.hardware.cluster import ClusterError
    from meshwright.planner.report.explain import outdated
    from meshwright.planner.simulate.predict import predict

    try:
        found = predict(plan, _cluster_of(plan, arguments))
    except ClusterError:
        return ""
    return outdated(plan, found.step_us, found.peak_bytes)


def _timeline(plan: "Plan", cluster: "Cluster", path: Path) -> str:
    """Draw the simulated step; what was written."""
    from meshwright.planner.report.draw import draw
    from meshwright.planner.simulate.predict import predict
    from meshwright.planner.simulate.timeline import perfetto

    if path.suffix not in (".svg", ".json"):
        raise ValueError(f"--timeline {path}: give a name that ends with .svg or .json")
    prediction = predict(plan, cluster)
    text = draw(plan, prediction) if path.suffix == ".svg" else perfetto(prediction)
    path.write_text(text, encoding="utf-8")
    return f"wrote {path}: a step of {prediction.step_us / 1e3:,.1f} ms on {cluster.name}"


def _cluster_of(plan: "Plan", arguments: argparse.Namespace) -> "Cluster":
    from meshwright.planner.hardware.cluster import parse_cluster

    return parse_cluster(arguments.cluster or plan.cluster)


def _why_not(plan: "Plan", arguments: argparse.Namespace) -> str:
    """The best plan under the pins, and what separates it from the one at hand."""
    from meshwright.planner.report.diff import diff

    options = argparse.Namespace(
        cluster=arguments.cluster or plan.cluster,
        seq=plan.seq,
        global_batch=plan.global_batch,
        dtype=plan.dtype,
        pin=[*arguments.why_not],
    )
    options.pin += _kept_pins(plan, {pin.partition("=")[0] for pin in arguments.why_not})
    other, _ = make_plan_of(arguments.model or plan.model, options, _say_to(arguments))
    pins = " ".join(arguments.why_not)
    return f"the best plan with {pins} against this one:\n" + diff(
        plan, other, _cluster_of(plan, arguments)
    )


def _kept_pins(plan: "Plan", asked: set[str]) -> list[str]:
    """What the search does not choose, as the plan has it, where nothing else is asked for."""
    kept = {"optimizer": plan.optimizer}
    if plan.precision != "pure":
        kept["precision"] = plan.precision
    if plan.reduce_dtype != plan.grad_dtype:
        kept["reduce_dtype"] = plan.reduce_dtype
    return [f"{key}={value}" for key, value in kept.items() if key not in asked]


def _diff(arguments: argparse.Namespace) -> None:
    from meshwright.planner.report.diff import diff

    first, second = _read_plan(arguments.first), _read_plan(arguments.second)
    text = diff(first, second, _cluster_of(first, arguments))
    print(json.dumps({"text": text}) if arguments.json else text)


def _export(arguments: argparse.Namespace) -> None:
    out = Path(arguments.output)
    files = _exported(Path(arguments.checkpoint), arguments.model, out)
    _wrote("weights", out, files, arguments)


def _exported(checkpoint: Path, model: str, out: Path) -> list[str]:
    from meshwright.models.stock import write_stock_config
    from meshwright.runtime.weights import export_weights

    return [
        *export_weights(checkpoint, _targets(model), out),
        *write_stock_config(_source(model), out),
    ]


def _import(arguments: argparse.Namespace) -> None:
    from meshwright.models.agreement import check_config
    from meshwright.models.stock import param_shapes
    from meshwright.runtime.weights import import_weights

    folder, out, source = Path(arguments.folder), Path(arguments.output), _source(arguments.model)
    targets = _targets(arguments.model)
    check_config(source, folder)
    files = import_weights(folder, targets, param_shapes(source), out)
    _wrote("weights", out, files, arguments)


def _generate(arguments: argparse.Namespace) -> None:
    import tempfile

    from meshwright.models.generate import Sampling, generate

    sampling = Sampling(
        arguments.max_tokens,
        arguments.samples,
        arguments.temperature,
        arguments.top_k,
        arguments.top_p,
        arguments.seed,
    )
    folder, tokenizer = Path(arguments.weights), arguments.tokenizer
    with tempfile.TemporaryDirectory() as exported:
        if (folder / "manifest.json").exists():
            if arguments.model is None:
                raise ValueError(f"{folder} is a checkpoint: say of which model with --model")
            _exported(folder, arguments.model, Path(exported))
            folder = Path(exported)
        texts = generate(folder, arguments.prompt, sampling, tokenizer)
    if arguments.json:
        print(json.dumps({"samples": texts}))
        return
    print("\n---\n".join(texts))


def _plot(arguments: argparse.Namespace) -> None:
    from meshwright.runtime.plot import plot_runs

    out = Path(arguments.output)
    plot_runs([Path(run) for run in arguments.runs], out)
    print(json.dumps({"picture": str(out)}) if arguments.json else f"drawn in {out}")


def _source(model: str) -> "ModelSource":
    from meshwright.models import load_model

    return load_model(model)


def _targets(model: str) -> list[tuple[str, tuple[str, ...], bool]]:
    from meshwright.models.stock import targets

    return [(t.name, t.parts, t.transposed) for t in targets(_source(model))]


def _wrote(what: str, out: Path, files: list[str], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps({"folder": str(out), "files": files}))
        return
    print(f"{what} written to {out}/: {', '.join(files)}")


def _tokenize(arguments: argparse.Namespace) -> None:
    from dataclasses import asdict

    from meshwright.runtime.data.shards import describe
    from meshwright.runtime.data.tokenize import Settings, tokenize

    settings = Settings(
        tokenizer=arguments.tokenizer,
        end=arguments.eos,
        form=arguments.format,
        field=arguments.field,
        shard_tokens=arguments.shard_tokens,
        held_out=arguments.held_out,
    )
    folder = Path(arguments.output)
    manifest = tokenize(
        arguments.inputs,
        folder,
        settings,
        workers=os.cpu_count() or 1 if arguments.workers is None else arguments.workers,
        on_bad=arguments.on_bad,
        say=_say_on_stderr,
    )
    if arguments.json:
        print(json.dumps({"folder": str(folder), **asdict(manifest)}))
        return
    print(describe(folder))
    print(f"train on it with: --data shards:{folder}")


def _say_on_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _data_info(arguments: argparse.Namespace) -> None:
    from dataclasses import asdict

    from meshwright.runtime.data.manifest import read_manifest
    from meshwright.runtime.data.shards import check_cheaply, describe

    folder = Path(arguments.folder)
    if arguments.json:
        manifest = read_manifest(folder)
        more = {"identity": manifest.identity, "hashes_checked": check_cheaply(folder, manifest)}
        print(json.dumps({**asdict(manifest), **more}))
        return
    print(describe(folder))


def _data_verify(arguments: argparse.Namespace) -> None:
    from meshwright.runtime.data.shards import total_bytes, verify

    manifest = verify(Path(arguments.folder))
    count, size = len(manifest.shards), total_bytes(manifest)
    if arguments.json:
        print(json.dumps({"shards": count, "bytes": size, "identity": manifest.identity}))
        return
    print(f"{arguments.folder}: {count} shards, {size:,} bytes, as the manifest says")


if __name__ == "__main__":
    sys.exit(main())
