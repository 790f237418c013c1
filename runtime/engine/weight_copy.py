"""A copy of the weights to the host that runs beside the next step."""

import torch


class WeightCopy:
    """The copy under way, if any: whoever changes weights waits for it first."""

    def __init__(self) -> None:
        self._copied: torch.cuda.Event | None = None

    def begin(self, copied: torch.cuda.Event) -> None:
        """Note a copy that has ended once `copied` has passed."""
        self._copied = copied

    def wait(self, device: torch.device) -> None:
        """Let the compute stream wait for the copy."""
        if self._copied is not None:
            torch.cuda.current_stream(device).wait_event(self._copied)
            self._copied = None
