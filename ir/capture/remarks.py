"""What a capture says of a model beside its graph."""

HOLDS_LOGITS = "the loss holds every logit, in float32 at least: it"
ALL_FORWARDS = (
    "the loss of the routers is of the whole batch: all micro-batches go forward before the first "
    "backward, and what they keep is held at once"
)


def holds_scores(where: str) -> str:
    """Return what to say of dropout of attention's weights."""
    return f"{where} drops weights, so every score is held, in its own dtype and in float32"


def left_out(place: str) -> str:
    """Return what to say of a number beside the logits."""
    return (
        f"the number that the forward returns at {place!r} is no part of the loss, which reads the "
        "logits alone; nothing trains by it (for that of routers, return their router_load)"
    )


def kept_apart(places: tuple[str, ...]) -> tuple[str, ...]:
    """Return what to say of the numbers that a forward sets as attributes; nothing of none."""
    if not places:
        return ()
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return (
        f"the number that the forward sets as attribute {places[0]!r}{more} is no part of the "
        "loss, which reads the logits alone; by itself it trains nothing (for that of routers, "
        "return their router_load)",
    )
