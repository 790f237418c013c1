"""What a model is, and whose tokens it reads: data that plans, programs and checkpoints hold.

Names and shapes do not tell models apart: one with another RoPE base or epsilon has the same
tensors and computes something else. The form is JSON, the same in a plan's section [identity], in
`identity.json` of a program and of exported weights, and in a checkpoint's manifest.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

FILE = "identity.json"
CODE = "py"  # the kind of a model that only the user's own code defines

# Fields of a config that change no logit of given weights: where the weights started, how long a
# sequence may be (a table of positions shows it in its shape), and words of the library.
_SILENT = frozenset(
    "init_std scaled_residual_init max_seq initializer_range max_position_embeddings n_positions "
    "n_ctx architectures dtype torch_dtype transformers_version _name_or_path use_cache "
    "bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id return_dict "
    "output_hidden_states output_attentions chunk_size_feed_forward id2label label2id problem_type "
    "is_encoder_decoder pretraining_tp task_specific_params tokenizer_class "
    "output_router_logits".split()
)
_SHOWN = 60  # characters of a value in a message


class IdentityError(ValueError):
    """An identity that cannot be read, or that differs from the one wanted."""


class Difference(NamedTuple):
    """A field in which two models differ, with both values."""

    field: str
    theirs: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.field} is {_short(self.theirs)} there and {_short(self.ours)} here"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


@dataclass(frozen=True)
class ModelIdentity:
    """kind: "decoder" (a preset or a TOML file), "hf" or "py". name: as plans call it. dtype: of
    the plan. config: all of its fields, none of a "py" model. graph: the hash of the captured
    graph in that dtype, of parameters' names and shapes with it; "" where nothing was captured."""

    kind: str
    name: str
    dtype: str
    config: dict[str, Any]
    graph: str

    @property
    def sha256(self) -> str:
        """Hash of what determines the model: its config, or else its graph."""
        what = [self.kind, self.config, self.graph if self.kind == CODE else ""]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class TokenizerIdentity:
    """kind: "bytes" or "tokenizers". path: of its file or folder, where it lay. sha256: of the file
    that defines it. vocab_sha256: of its tokens with their ids, "" where that is not known."""

    kind: str
    name: str
    path: str
    sha256: str
    vocab_sha256: str = ""

    def same(self, other: "TokenizerIdentity") -> bool:
        """Tell whether ids mean the same tokens; the same vocabulary in another file does."""
        known = bool(self.vocab_sha256) and self.vocab_sha256 == other.vocab_sha256
        return known or self.sha256 == other.sha256

    def __str__(self) -> str:
        return f"{self.name} ({self.sha256[:12]})"


@dataclass(frozen=True)
class Identity:
    """Model and tokenizer are None where they are not known: of older plans and checkpoints, of
    synthetic tokens. loss: by name, of the user's own; "" for the cross-entropy."""

    model: ModelIdentity | None = None
    tokenizer: TokenizerIdentity | None = None
    loss: str = ""

    def to_json(self) -> dict[str, Any]:
        said = asdict(self)
        if self.model is not None:
            said["model"]["sha256"] = self.model.sha256
        if not self.loss:
            del said["loss"]
        return said

    @staticmethod
    def from_json(said: dict[str, Any]) -> "Identity":
        """Read what `to_json` gave. Raises IdentityError for anything else."""
        try:
            loss = str(said.get("loss", ""))
            return Identity(_model(said["model"]), _tokenizer(said["tokenizer"]), loss)
        except (KeyError, TypeError, AttributeError) as error:
            raise IdentityError(f"malformed: {error!r}; compile the plan again") from None

    def text(self) -> str:
        """Return the JSON as text, a field a line, without the last line's end."""
        return json.dumps(self.to_json(), indent=1)

    @staticmethod
    def from_text(text: str) -> "Identity":
        """Read what `text` gave. Raises IdentityError for anything else."""
        try:
            return Identity.from_json(json.loads(text))
        except json.JSONDecodeError as error:
            raise IdentityError(f"not JSON: {error}; compile the plan again") from None


def read_identity(folder: Path) -> Identity:
    """The identity that a folder's file states; nothing is known where it has none.

    Raises IdentityError where the file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return Identity()
    try:
        return Identity.from_text(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of the text, or of its decoding
        raise IdentityError(f"{path}: {error}") from None


def _model(said: dict[str, Any] | None) -> ModelIdentity | None:
    if said is None:
        return None
    names = ("kind", "name", "dtype", "graph")
    if not isinstance(said["config"], dict) or any(type(said[name]) is not str for name in names):
        raise TypeError(f"model is {said!r}")
    model = ModelIdentity(said["kind"], said["name"], said["dtype"], said["config"], said["graph"])
    if said["sha256"] != model.sha256:
        raise IdentityError(
            f"the model's SHA-256 is {model.sha256[:12]}, it says {str(said['sha256'])[:12]}: it "
            "was changed by hand; plan again"
        )
    return model


def _tokenizer(said: dict[str, Any] | None) -> TokenizerIdentity | None:
    if said is None:
        return None
    if any(type(value) is not str for value in said.values()):
        raise TypeError(f"tokenizer is {said!r}")
    return TokenizerIdentity(**said)


def differences(theirs: ModelIdentity, ours: ModelIdentity) -> list[Difference]:
    """Every field of the configs in which two models differ; of other kinds or families only that.

    A field that one of them lacks is not compared: versions of a library add some. Nor is dropout,
    which changes no weight.
    """
    if theirs.kind != ours.kind:
        return [Difference("kind", theirs.kind, ours.kind)]
    found = list(_of_config("", theirs.config, ours.config))
    families = [d for d in found if d.field == "model_type"]
    return families or found


def _of_config(prefix: str, theirs: dict, ours: dict) -> Iterator[Difference]:
    """Fields that both have, those of tables key by key."""
    for key in theirs:
        if key in _SILENT or "drop" in key or key not in ours or theirs[key] == ours[key]:
            continue
        if isinstance(theirs[key], dict) and isinstance(ours[key], dict):
            yield from _of_config(f"{prefix}{key}.", theirs[key], ours[key])
        else:
            yield Difference(prefix + key, theirs[key], ours[key])


def check_model(where: str, theirs: Identity, ours: Identity, way_out: str) -> None:
    """Raise IdentityError where `theirs`, found at `where`, is of another model than `ours`.

    What either does not know is not compared.
    """
    if theirs.model is None or ours.model is None:
        return
    found = differences(theirs.model, ours.model)
    if found:
        raise IdentityError(
            f"{where} is of another model ({theirs.model.name}, this is {ours.model.name}): "
            f"{', '.join(map(str, found))}; {way_out}"
        )


def check_code(where: str, theirs: Identity, ours: Identity) -> None:
    """Raise IdentityError where two models of the user's own code compute something else, as far
    as captures in one dtype, under one loss, tell."""
    if theirs.model is None or ours.model is None or ours.model.kind != CODE:
        return
    if theirs.loss != ours.loss:
        return
    both = theirs.model, ours.model
    if both[0].dtype == both[1].dtype and both[0].graph != both[1].graph:
        raise IdentityError(
            f"{where} is of other code than {ours.model.name} has now: its graph is "
            f"{both[0].graph} there and {both[1].graph} here; take the code (and the torch) that "
            "wrote it, or go on with this code by --accept-graph"
        )


def check_tokenizer(where: str, theirs: Identity, ours: Identity, way_out: str) -> None:
    """Raise IdentityError where the tokens of `ours` are not those that the weights at `where`
    were trained on. What either does not know is not compared."""
    if theirs.tokenizer is None or ours.tokenizer is None:
        return
    if not theirs.tokenizer.same(ours.tokenizer):
        raise IdentityError(
            f"{where} was trained on tokens of {theirs.tokenizer}, these are of "
            f"{ours.tokenizer}; {way_out}"
        )
