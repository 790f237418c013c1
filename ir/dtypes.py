"""Element types by their short names."""

ITEM_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "i64": 8, "i32": 4, "u8": 1, "bool": 1}

TORCH_NAMES = {
    "f64": "float64",
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "i64": "int64",
    "i32": "int32",
    "u8": "uint8",
    "bool": "bool",
}
SHORT_NAMES = {name: short for short, name in TORCH_NAMES.items()}
FLOATS = ("f64", "f32", "bf16", "f16")
PLANNED = ("f32", "bf16", "f64")  # of parameters, that a plan may have
HALVES = ("bf16", "f16")  # in which small updates and long sums lose what they add
