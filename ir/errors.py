"""What can go wrong in a room, under one parent; each message carries the values and a way out."""


class MeshwrightError(ValueError):
    """Bad input from the user: one clear message, exit code 2."""


class CaptureError(MeshwrightError):
    """The model cannot be traced as it stands."""


class SizeError(CaptureError):
    """The model cannot be traced with its sizes as symbols."""


class ProofError(CaptureError):
    """The captured model computes something else than the module."""


class ParseError(MeshwrightError):
    """A text that is no graph, plan, schedule or cluster of this version."""


class VerifyError(MeshwrightError):
    """A graph or plan that contradicts itself."""


class PlanError(MeshwrightError):
    """Demands (pins, mesh, batch) that do not fit together."""


class InfeasibleError(PlanError):
    """No plan satisfies the demands. need_bytes: of a device, that the leanest plan found takes; 0
    where that is not known."""

    def __init__(self, text: str, need_bytes: float = 0.0) -> None:
        super().__init__(text)
        self.need_bytes = need_bytes
