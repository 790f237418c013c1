"""Tokenize documents into a folder of shards: in parallel, in order, resumable.

Workers take chunks of the inputs; the results are written in the inputs' order, so the bytes do
not depend on the number of workers. After each shard the ledger says where it ended: a run that
was killed keeps the good shards and goes on behind the last of them.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

from ..atomic_file import write_atomic
from ..metrics.progress import Progress
from .documents import Broken
from .errors import DataError
from .inputs import Input, TextFile, open_inputs
from .ledger import Ledger, Position, check_same, check_shard
from .manifest import FILE, Manifest, read_manifest
from .tokenizer import Tokenizer, id_dtype, load_tokenizer
from .workers import Chunk, Result, in_order
from .writer import ShardWriter, no_room

SHARD_TOKENS = 2**27
NAMED = 10  # broken documents that are named, per run


@dataclass(frozen=True)
class Settings:
    """Options that decide the result. tokenizer: bytes, a file or folder; end: see load_tokenizer.

    form: auto, text or jsonl. field: of a jsonl line or a dataset's row. held_out: a folder of
    shards that the manifest shall name.
    """

    tokenizer: str = "bytes"
    end: str = ""
    form: str = "auto"
    field: str = "text"
    shard_tokens: int = SHARD_TOKENS
    held_out: str = ""


def tokenize(
    specs: list[str],
    folder: Path,
    settings: Settings,
    *,
    workers: int = 1,
    on_bad: str = "stop",
    say: Callable[[str], None] = print,
) -> Manifest:
    """Write the shards of `specs` (see open_inputs) to `folder`; returns the manifest.

    on_bad: what a broken document does, "stop" or "skip"; both name it through `say` or the error.
    Raises DataError for inputs, tokenizer or folder that cannot be used.
    """
    _check(settings, workers)
    if workers > 1:
        # The library's own threads do not survive a fork.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    tokenizer = load_tokenizer(settings.tokenizer, settings.end)
    inputs = open_inputs(specs, settings.form, settings.field)
    if settings.held_out:
        settings = replace(settings, held_out=_held_out(settings.held_out, folder, tokenizer))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        job = _Job(inputs, folder, settings, tokenizer, on_bad, say)
        try:
            return job.run(workers)
        except DataError:
            job.ledger.drop_empty()
            raise
    except OSError as error:
        raise no_room(folder, error) from None
    except BrokenProcessPool:
        raise DataError(
            f"one of {workers} workers was killed, out of memory perhaps; run the same command "
            "again with fewer --workers: finished shards are kept"
        ) from None


def _check(settings: Settings, workers: int) -> None:
    for name, value in (("--workers", workers), ("--shard-tokens", settings.shard_tokens)):
        if value < 1:
            raise DataError(f"{name} {value}: at least 1")


def _held_out(name: str, folder: Path, tokenizer: Tokenizer) -> str:
    """The held-out folder as a path from `folder`, its tokenizer the same."""
    other, own = read_manifest(Path(name)).tokenizer_identity, tokenizer.identity
    if not other.same(own):
        raise DataError(
            f"{name} was tokenized with {other}, the data is to be with {own}; tokenize both with "
            "one"
        )
    return os.path.relpath(name, folder)


class _Job:
    """One call of tokenize."""

    def __init__(
        self,
        inputs: list[Input],
        folder: Path,
        settings: Settings,
        tokenizer: Tokenizer,
        on_bad: str,
        say: Callable[[str], None],
    ) -> None:
        self.inputs, self.folder, self.settings = inputs, folder, settings
        self.tokenizer, self.on_bad, self.say = tokenizer, on_bad, say
        job = [*self._job(), [item.stamp for item in inputs]]
        self.ledger = Ledger(folder, job, id_dtype(tokenizer.vocab_size).name)
        self.bar = Progress("tokenize", sum(item.size for item in inputs))
        self.named = 0

    def run(self, workers: int) -> Manifest:
        if (self.folder / FILE).exists():
            return self._finished()
        self.ledger.resume(self.say)
        where = self.ledger.where
        writer = ShardWriter(self.folder, self.settings.shard_tokens, len(self.ledger.shards))
        self.bar.first = self._before(where)
        try:
            for chunk, result in in_order(self._chunks(where), workers):
                if chunk.number != where.input:
                    where = replace(where, input=chunk.number, start=0, line=0, tokens=0)
                where = self._write(writer, where, result)
                where = _behind(where, chunk, result)
                self.bar.at(self._before(where), f"{len(self.ledger.shards)} shards")
            if writer.tokens:
                self.ledger.add(writer.finish(), where)
        finally:
            self.bar.clear()
            writer.close()
        return self._publish(where)

    def _finished(self) -> Manifest:
        """The folder's manifest, when this very job made it."""
        manifest = read_manifest(self.folder)
        inputs = [{k: v for k, v in row.items() if k != "stamp"} for row in manifest.inputs]
        coder = {key: manifest.tokenizer.get(key) for key in ("name", "sha256", "end")}
        then = [coder, inputs, manifest.settings]
        check_same(self.folder, then, self._job(), "finished")
        self._check_stamps(manifest)
        for shard in manifest.shards:
            check_shard(self.folder, shard, manifest.dtype)
        self.say(f"{self.folder} is finished already; its shards are verified")
        if manifest.held_out != self.settings.held_out:
            manifest = replace(manifest, held_out=self.settings.held_out)
            write_atomic(self.folder / FILE, manifest.text())
        self.ledger.close()  # a kill may have come between the two
        return manifest

    def _check_stamps(self, manifest: Manifest) -> None:
        """Raises DataError naming an input that was written since; of manifests that hold no stamps
        nothing is known."""
        for item, row in zip(self.inputs, manifest.inputs, strict=True):
            then = row.get("stamp", item.stamp)
            if then != item.stamp:
                raise DataError(
                    f"{self.folder} was made of {item.name} as it was written at {then} ns, now it "
                    f"is of {item.stamp} ns; give another -o, or remove the folder"
                )

    def _job(self) -> list:
        """Tokenizer, inputs and settings; the manifest adds the inputs' stamps, and where the
        tokenizer lay."""
        coder, chosen = self.tokenizer.identity, self.settings
        return [
            {"name": coder.name, "sha256": coder.sha256, "end": self.tokenizer.end},
            [{"name": item.name, "size": item.size} for item in self.inputs],
            {"form": chosen.form, "field": chosen.field, "shard_tokens": chosen.shard_tokens},
        ]

    # Chunks, results, shards

    def _chunks(self, where: Position) -> Iterator[Chunk]:
        """From the chunk at `where` to the last."""
        coder = self.settings.tokenizer, self.settings.end
        start = where.start
        for index in range(where.input, len(self.inputs)):
            item = self.inputs[index]
            while start < item.size:
                stop = item.cut(start)
                yield Chunk(index, item, start, stop, *coder)
                start = stop
            start = 0

    def _write(self, writer: ShardWriter, where: Position, result: Result) -> Position:
        """Write what of the chunk at `where` is not written yet."""
        self._report(where, result.broken)
        while where.tokens < len(result.ids):
            stop = min(len(result.ids), where.tokens + writer.room)
            inside = (result.ends > where.tokens) & (result.ends <= stop)
            writer.add(result.ids[where.tokens : stop], result.ends[inside] - where.tokens)
            where = replace(where, tokens=stop)
            if not writer.room:
                self.ledger.add(writer.finish(), where)
        return where

    def _report(self, where: Position, broken: list[Broken]) -> None:
        item = self.inputs[where.input]
        for document in broken:
            text = f"{item.place(where.start, where.line, document.at)}: {document.why}"
            if self.on_bad == "stop":
                raise DataError(f"{text}; fix it, or skip such documents with --on-bad skip")
            self.named += 1
            if self.named <= NAMED:
                self.bar.clear()
                self.say(f"skipped {text}")

    def _files_without_text(self) -> int:
        """Count the text files of 0 bytes: documents of which no chunk is made."""
        return sum(isinstance(item, TextFile) and not item.size for item in self.inputs)

    def _before(self, where: Position) -> int:
        return sum(item.size for item in self.inputs[: where.input]) + where.start

    def _publish(self, where: Position) -> Manifest:
        shards = tuple(self.ledger.shards)
        if not shards:
            raise DataError(f"{len(self.inputs)} inputs hold 0 tokens; give some with text")
        tokenizer, inputs, settings = self._job()
        coder = self.tokenizer.identity
        manifest = Manifest(
            dtype=self.ledger.dtype,
            vocab_size=self.tokenizer.vocab_size,
            tokens=sum(shard.tokens for shard in shards),
            documents=sum(shard.documents for shard in shards),
            tokenizer={**tokenizer, "path": coder.path, "vocab_sha256": coder.vocab_sha256},
            inputs=[
                {**row, "stamp": item.stamp} for row, item in zip(inputs, self.inputs, strict=True)
            ],
            settings=settings,
            shards=shards,
            broken=where.broken,
            empty=where.empty + self._files_without_text(),
            held_out=self.settings.held_out,
        )
        write_atomic(self.folder / FILE, manifest.text())
        self.ledger.close()
        return manifest


def _behind(where: Position, chunk: Chunk, result: Result) -> Position:
    """The position behind a chunk that is written."""
    return replace(
        where,
        start=chunk.stop,
        line=where.line + result.lines,
        tokens=0,
        broken=where.broken + len(result.broken),
        empty=where.empty + result.empty,
    )
