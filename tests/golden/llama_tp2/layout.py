"""What every rank of golden-llama shares; plan 28cd8134e6b10cb3."""

from runtime.layout import Bucket, Entry, Input, Layout, Param

LAYOUT = Layout(
    model="golden-llama",
    dtype="float32",
    mesh={"pp": 1, "dp": 1, "tp": 2},  # major to minor
    stage_ranks=(0,),  # of every stage its pp coordinate
    micro_batch=4,
    num_microbatches=1,
    seq=8,
    vocab_size=64,
    zero=0,
    master=False,
    reduce_dtype="float32",
    flops_per_token=20736.0,
    optimizer="adamw",
    inputs=(
        Input("tokens", "int64", ("B", "S")),
        Input("labels", "int64", ("B", "S")),
        Input("denominator", "float32", ()),
    ),
    params=(
        Param("embed.weight", (64, 16), (), "normal(0.0, 0.02)"),
        Param("layers.0.attention_norm.weight", (16,), (), "constant(1.0)"),
        Param("layers.0.attention.q.weight", (16, 16), ((0, 1, "tp"),), "normal(0.0, 0.02)", hidden=True),
        Param("layers.0.attention.k.weight", (8, 16), ((0, 1, "tp"),), "normal(0.0, 0.02)", hidden=True),
        Param("layers.0.attention.v.weight", (8, 16), ((0, 1, "tp"),), "normal(0.0, 0.02)", hidden=True),
        Param("layers.0.attention.o.weight", (16, 16), ((1, 1, "tp"),), "normal(0.0, 0.02)", hidden=True),
        Param("layers.0.ffn_norm.weight", (16,), (), "constant(1.0)"),
        Param("layers.0.ffn.gate.weight", (32, 16), ((0, 1, "tp"),), "normal(0.0, 0.02)", hidden=True),
        Param("layers.0.ffn.up.weight", (32, 16), ((0, 1, "tp"),), "normal(0.0, 0.02)", hidden=True),
        Param("layers.0.ffn.down.weight", (16, 32), ((1, 1, "tp"),), "normal(0.0, 0.02)", hidden=True),
        Param("norm.weight", (16,), (), "constant(1.0)"),
        Param("lm_head.weight", (64, 16), ((0, 1, "tp"),), "normal(0.0, 0.02)"),
    ),
    buckets=(
        Bucket(
            "embed", 1024, (0,),
            (
                Entry("embed.weight", 0, (64, 16), partial=(), decay=True),
            ),
        ),
        Bucket(
            "layers.0.attention", 448, (0,),
            (
                Entry("layers.0.attention_norm.weight", 0, (16,), partial=(), decay=False),
                Entry("layers.0.attention.q.weight", 64, (8, 16), partial=(), decay=True),
                Entry("layers.0.attention.k.weight", 192, (4, 16), partial=(), decay=True),
                Entry("layers.0.attention.v.weight", 256, (4, 16), partial=(), decay=True),
                Entry("layers.0.attention.o.weight", 320, (16, 8), partial=(), decay=True),
            ),
        ),
        Bucket(
            "layers.0.ffn", 832, (0,),
            (
                Entry("layers.0.ffn_norm.weight", 0, (16,), partial=(), decay=False),
                Entry("layers.0.ffn.gate.weight", 64, (16, 16), partial=(), decay=True),
                Entry("layers.0.ffn.up.weight", 320, (16, 16), partial=(), decay=True),
                Entry("layers.0.ffn.down.weight", 576, (16, 16), partial=(), decay=True),
            ),
        ),
        Bucket(
            "head", 576, (0,),
            (
                Entry("norm.weight", 0, (16,), partial=(), decay=False),
                Entry("lm_head.weight", 64, (32, 16), partial=(), decay=True),
            ),
        ),
    ),
)
