"""What every rank of golden-llama shares; plan 07155a19894c419e."""

from runtime.layout import Bucket, Entry, Input, Layout, Param

LAYOUT = Layout(
    model="golden-llama",
    dtype="float32",
    mesh={"pp": 1, "dp": 2, "tp": 1},  # major to minor
    stage_ranks=(0,),  # of every stage its pp coordinate
    micro_batch=1,
    num_microbatches=2,
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
        Param("layers.0.attention.q.weight", (16, 16), (), "normal(0.0, 0.02)", hidden=True),
        Param("layers.0.attention.k.weight", (8, 16), (), "normal(0.0, 0.02)", hidden=True),
        Param("layers.0.attention.v.weight", (8, 16), (), "normal(0.0, 0.02)", hidden=True),
        Param("layers.0.attention.o.weight", (16, 16), (), "normal(0.0, 0.02)", hidden=True),
        Param("layers.0.ffn_norm.weight", (16,), (), "constant(1.0)"),
        Param("layers.0.ffn.gate.weight", (32, 16), (), "normal(0.0, 0.02)", hidden=True),
        Param("layers.0.ffn.up.weight", (32, 16), (), "normal(0.0, 0.02)", hidden=True),
        Param("layers.0.ffn.down.weight", (16, 32), (), "normal(0.0, 0.02)", hidden=True),
        Param("norm.weight", (16,), (), "constant(1.0)"),
        Param("lm_head.weight", (64, 16), (), "normal(0.0, 0.02)"),
    ),
    buckets=(
        Bucket(
            "embed", 1024, (0,),
            (
                Entry("embed.weight", 0, (64, 16), partial=(), decay=True),
            ),
        ),
        Bucket(
            "layers.0.attention", 896, (0,),
            (
                Entry("layers.0.attention.q.weight", 0, (16, 16), partial=(), decay=True),
                Entry("layers.0.attention.k.weight", 256, (8, 16), partial=(), decay=True),
                Entry("layers.0.attention.v.weight", 384, (8, 16), partial=(), decay=True),
                Entry("layers.0.attention.o.weight", 512, (16, 16), partial=(), decay=True),
                Entry("layers.0.attention_norm.weight", 768, (16,), partial=(), decay=False),
            ),
        ),
        Bucket(
            "layers.0.ffn", 1664, (0,),
            (
                Entry("layers.0.ffn.gate.weight", 0, (32, 16), partial=(), decay=True),
                Entry("layers.0.ffn.up.weight", 512, (32, 16), partial=(), decay=True),
                Entry("layers.0.ffn.down.weight", 1024, (16, 32), partial=(), decay=True),
                Entry("layers.0.ffn_norm.weight", 1536, (16,), partial=(), decay=False),
            ),
        ),
        Bucket(
            "head", 1152, (0,),
            (
                Entry("lm_head.weight", 0, (64, 16), partial=(), decay=True),
                Entry("norm.weight", 1024, (16,), partial=(), decay=False),
            ),
        ),
    ),
)
