"""Whether a stock encoder draws a number to leave out no layer, as older transformers do."""

import inspect

import pytest
from transformers import PreTrainedModel


def skip_where_drawn(encoder: type[PreTrainedModel]) -> None:
    """Skip where a forward chooses by a drawn number, though it may leave out no layer: values
    decide, so capture refuses it."""
    if "self.layerdrop > 0" not in inspect.getsource(encoder.forward):
        pytest.skip(f"{encoder.__name__} of this transformers draws whether to leave out a layer")
