"""Training data: text becomes shards of tokens once, a reader cuts them into batches in every run.

    text, jsonl, datasets --tokenize--> shards + manifest --corpus--> samples --reader--> batches

Note: three orders. A *window* is a piece of a corpus, numbered as it lies there. A *sample* is a
window in the order of training: sample k of an epoch is window permute(k). A *row* is a sample's
place in the global batch: row r of step s is sample s * global_batch + r, counted over all epochs.
All follows from (data, seed, step, row), so any rank reads any rows, under any plan, with no state
to save; only a stream (`hf-stream:`) has a position, which its reader hands to the checkpoint.

`open_reader` and `Prefetcher` are what a run needs, `open_held_out` what an evaluation reads.
"""

from .batches import Batch, BatchReader, Reader, eval_batches, num_eval_batches, shuffled_reader
from .corpus import ArrayCorpus, Corpus, JoinedCorpus, SyntheticCorpus, check_tokenizers
from .errors import DataError
from .held_out import HeldOut
from .numbered import Part
from .permutation import permute
from .prefetch import Prefetcher
from .samples import IGNORED, NOTHING, check_vocab
from .source import (
    absolute,
    held_out_name,
    open_corpus,
    open_held_out,
    open_reader,
)
from .tokenizer import folder_tokenizer

__all__ = [
    "IGNORED",
    "NOTHING",
    "ArrayCorpus",
    "Batch",
    "BatchReader",
    "Corpus",
    "DataError",
    "HeldOut",
    "JoinedCorpus",
    "Part",
    "Prefetcher",
    "Reader",
    "SyntheticCorpus",
    "absolute",
    "check_tokenizers",
    "check_vocab",
    "eval_batches",
    "folder_tokenizer",
    "held_out_name",
    "num_eval_batches",
    "open_corpus",
    "open_held_out",
    "open_reader",
    "permute",
    "shuffled_reader",
]
