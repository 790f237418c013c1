"""What capture watches while it traces, and what it relies on in torch for that."""

import torch
from torch._dynamo.trace_rules import get_torch_obj_rule_map
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable, tracing_state_functions

from meshwright.ir.capture.traced_apart import no_question_of_tracing

TABLES = (
    tracing_state_functions,
    TorchInGraphFunctionVariable._get_handlers,
    get_torch_obj_rule_map,
)


def test_torch_compile_knows_the_questions_that_were_watched() -> None:
    """torch._dynamo keeps tables of functions, each made once: of those that ask whether they are
    traced, of what answers them, and of all that it knows."""
    plain = torch.compiler.is_compiling
    for table in TABLES:
        table.cache_clear()
    with no_question_of_tracing("model"):
        assert torch.compiler.is_compiling is not plain
        assert not any(plain in table() for table in TABLES)
    assert torch.compiler.is_compiling is plain
    assert all(plain in table() for table in TABLES)


def test_tables_made_before_stay() -> None:
    made = [table() for table in TABLES]
    with no_question_of_tracing("model"):
        assert all(table() is known for table, known in zip(TABLES, made, strict=True))
    assert all(table() is known for table, known in zip(TABLES, made, strict=True))
