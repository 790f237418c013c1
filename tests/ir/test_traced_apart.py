"""What capture watches while it traces, and what it relies on in torch for that."""

import torch
from torch._dynamo.variables.torch import tracing_state_functions

from meshwright.ir.capture.traced_apart import no_question_of_tracing


def test_torch_compile_knows_the_questions_that_were_watched() -> None:
    """torch._dynamo keeps a table of the functions that ask whether they are traced, made once."""
    plain = torch.compiler.is_compiling
    tracing_state_functions.cache_clear()
    with no_question_of_tracing("model"):
        assert torch.compiler.is_compiling is not plain
        assert plain not in tracing_state_functions()
    assert torch.compiler.is_compiling is plain and plain in tracing_state_functions()
