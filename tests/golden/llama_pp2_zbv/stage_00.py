"""Stage 0 of 4, on pp rank 0: golden-llama, embed to embed.

Mesh pp=2 dp=1 tp=1; micro-batches: 4 of 1 rows a
data-parallel rank; ZeRO 0; recompute cheap; zbv.
All ranks of this stage run this text; they differ in TP_RANK and in what their buckets hold.
Shapes are local. `d_v` is the gradient of `v`, `d_v_from_u` the part of it through `u`,
`d_v_mul` a step towards it.
"""

import torch
import torch.nn.functional as F
from runtime import collectives, kernels, mesh
from runtime.layout import Instance, Piece

B = 1  # rows of a micro-batch on this rank
S = 8  # tokens of a row
TP_RANK = mesh.coordinate("tp")
TP = mesh.group("tp")
DEVICE = mesh.device()


def context(constants):
    """Values that depend on no parameter and no token, by name; computed once."""
    return {}


# embed: used once on this stage

def embed_forward(params, tokens):
    """embed_embedding [B, S, 16], saved."""
    (embed_w,) = params
    # models/decoder.py:67
    embed_embedding = kernels.embedding(tokens, embed_w, start=0, num_embeddings=64)
    saved = (tokens,)
    return embed_embedding, saved


def embed_input_grad(params, saved, dy):
    """Returns None, handed."""
    (embed_w,) = params
    (tokens,) = saved
    # handed to weight_grad
    handed = (dy, tokens,)
    return None, handed


def embed_weight_grad(handed, grads):
    """Adds to grads."""
    (dy, tokens,) = handed
    (grad_embed_w,) = grads
    # models/decoder.py:67
    kernels.add_embedding_weight_grad(grad_embed_w, dy, tokens, start=0, rows=64)


PIECES = {
    "embed": Piece(
        forward=embed_forward,
        input_grad=embed_input_grad,
        weight_grad=embed_weight_grad,
        takes_x=False,
        context=(),
        data=("tokens",),
    ),
}

INSTANCES = (
    Instance(
        name="embed",
        piece="embed",
        params=("embed.weight",),
        buckets=("embed",),
        reduces=("embed",),
    ),
)

# What crosses the stage's borders: (local shape, dtype), None at the ends.
ENTRY = None
EXIT = ((B, S, 16), torch.float32)


def forward(run, microbatch, x):
    """One micro-batch through this stage: tokens in, to stage 1."""
    for index, item in enumerate(INSTANCES):
        run.prefetch(index + 1)  # gather the next parameters behind this compute
        piece = run.pieces[item.piece]
        operands = run.operands(index, microbatch)
        inputs = (x, *operands) if piece.takes_x else operands
        x, saved = piece.forward(run.params(index), *inputs)
        run.keep(index, microbatch, saved)
        run.release(index)
    return x


def input_grad(run, microbatch, dy):
    """The same micro-batch back to the stage's input; what weight_grad needs is handed to it."""
    for index in reversed(range(len(INSTANCES))):
        run.prefetch(index - 1)
        piece = run.pieces[INSTANCES[index].piece]
        saved = run.saved(index, microbatch)
        if piece.backward is not None:  # it makes all gradients at once
            dy = piece.backward(run.params(index), saved, dy, run.grads(index))
            run.reduce(index)
        else:
            dy, handed = piece.input_grad(run.params(index), saved, dy)
            run.hand(index, microbatch, handed)
        run.release(index)
    return dy


def weight_grad(run, microbatch):
    """Gradients of the weights, added into buckets and reduced behind compute."""
    for index in reversed(range(len(INSTANCES))):
        piece = run.pieces[INSTANCES[index].piece]
        if piece.weight_grad is not None:
            piece.weight_grad(run.handed(index, microbatch), run.grads(index))
            run.reduce(index)
