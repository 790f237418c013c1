"""Rules of capture and emission broken on purpose: the proof catches each."""

from collections.abc import Callable

import proofs.zoo_of_values  # noqa: F401  adds its modules
import pytest
from proofs.zoo import VOCAB, ZOO
from torch.fx import Graph, Node

import meshwright.codegen.emitters.call as call
import meshwright.codegen.emitters.pointwise as pointwise
import meshwright.codegen.piece as piece
import meshwright.ir.phases as phases
from meshwright.ir.capture import composites, export, functional, joint, plain_attention
from meshwright.ir.capture.export import trace
from meshwright.ir.errors import ProofError
from meshwright.models import load_model
from meshwright.proof import one_rank
from meshwright.proof.prove import Subject, prove

Patch = pytest.MonkeyPatch


def _no_detach(patch: Patch) -> None:
    """Every detach is left out."""
    kept = export.drop_idle_detaches
    patch.setattr(export, "drop_idle_detaches", lambda graph, params: kept(graph, set()))


def _grad_everywhere(patch: Patch) -> None:
    """A no_grad region is written out as if gradients were on."""
    kept = functional._call

    def call_without(graph: Graph, target, args: tuple, like: Node, kwargs=None) -> Node:
        if target is functional.aten.detach.default:
            return args[0]
        return kept(graph, target, args, like, kwargs)

    patch.setattr(functional, "_call", call_without)


def _lost_write(patch: Patch) -> None:
    """A write into a part of a tensor changes nothing."""
    kept = functional.Functionalise._put

    def put(self, parent, chain, value, writer):
        return parent if chain else kept(self, parent, chain, value, writer)

    patch.setattr(functional.Functionalise, "_put", put)


def _stale_view(patch: Patch) -> None:
    """A view that is read after a write gives what was there before."""
    kept = functional.Functionalise._now

    def now(self, node: Node) -> Node:
        return node if len(self.homes.get(node, ((), ()))[1]) else kept(self, node)

    patch.setattr(functional.Functionalise, "_now", now)


def _no_brackets(patch: Patch) -> None:
    """Sizes beside an operator stand without brackets."""
    for module in (call, pointwise):
        patch.setattr(module, "as_term", lambda text: text, raising=False)


def _one_name(patch: Patch) -> None:
    """Weights of one piece go by one name."""
    kept = piece.identifier
    patch.setattr(piece, "identifier", lambda name: kept(name.replace("grad_", "")))


def _greedy_half(patch: Patch) -> None:
    """The second half of a backward takes what the first needs."""
    patch.setattr(phases, "_ancestors", lambda ops, names: set())


def _wrong_mask(patch: Patch) -> None:
    """Attention with a mask attends to what is masked."""
    kept = composites._dense_attention

    def attend(q, k, v, mask, is_causal, scale):
        return kept(q, k, v, None, is_causal, scale)

    patch.setattr(composites, "_dense_attention", attend)


def _wrong_rule(patch: Patch) -> None:
    """A causal mask that is a tensor is read as one that hides nothing."""
    made = plain_attention.attention_instead_of

    def attention(op, given, rule):
        return made(op, given, rule._replace(causal=False))

    patch.setattr(plain_attention, "attention_instead_of", attention)


def _own_epsilon(patch: Patch) -> None:
    """RMSNorm takes another epsilon than torch's where it is given none."""
    kept = composites._rms_norm
    patch.setitem(
        joint.EXPANSIONS, "rms_norm", lambda x, w=None, n=(), eps=None, **k: kept(
            x, w, k.get("normalized_shape", n), 1e-2 if eps is None else eps
        ),
    )  # fmt: skip


def _shared_rows(patch: Patch) -> None:
    """Backward sees one micro-batch's values for another."""
    kept = one_rank._actions

    def actions(variant):
        found = list(kept(variant))
        return tuple(found[:1] * variant.microbatches + found[variant.microbatches :])

    patch.setattr(one_rank, "_actions", actions)


PLANTED: dict[str, tuple[Callable[[Patch], None], str]] = {
    "no-detach": (_no_detach, "detached"),
    "no-detach-of-little": (_no_detach, "small_and_detached"),
    "grad-everywhere": (_grad_everywhere, "no_grad_region"),
    "lost-write": (_lost_write, "partial_write"),
    "stale-view": (_stale_view, "view_read_after_a_write"),
    "no-brackets": (_no_brackets, "sizes_divide"),
    "one-name": (_one_name, "hostile_names"),
    "wrong-mask": (_wrong_mask, "attention_in_blocks"),
    "wrong-rule": (_wrong_rule, "masked_attention"),
    "own-epsilon": (_own_epsilon, "rms_default_eps"),
    "shared-rows": (_shared_rows, "scalar_parameter"),
}


def _prove(name: str) -> None:
    prove(Subject(name, ZOO[name], VOCAB, None), trace(ZOO[name], name, "f32", VOCAB))


@pytest.mark.parametrize("name", PLANTED)
def test_is_caught(name: str, monkeypatch: Patch) -> None:
    plant, module = PLANTED[name]
    plant(monkeypatch)
    with pytest.raises(ProofError) as caught:
        _prove(module)
    print(caught.value)


def test_a_wrong_split_is_caught(monkeypatch: Patch) -> None:
    source = load_model("tiny-llama")
    traced = trace(source.build, source.name, "f32", source.vocab_size)
    _greedy_half(monkeypatch)
    with pytest.raises(ProofError):
        prove(Subject(source.name, source.build, source.vocab_size, source.max_seq), traced)
