"""The file of the schedule: what every pp rank does, in order."""

from meshwright.ir.plan import Plan

from .writer import Writer


def schedule_source(plan: Plan) -> str:
    """`schedule.py`: the action lists as literals."""
    writer = Writer()
    writer.lines(
        f'"""The {plan.schedule_name} schedule of {plan.model}: one list of actions a pp rank.',
        "",
        "(kind, stage, micro-batch): F forward, B backward or its halves I (gradient of the",
        "stage's input) and W (gradients of its weights); SEND_F, RECV_F, SEND_B, RECV_B move",
        "activations and their gradients between ranks; STEP updates the weights.",
        '"""',
        "",
    )
    with writer.block("SCHEDULES = ("):
        for rank, actions in enumerate(plan.schedule):
            texts = [f'("{a.kind}", {a.stage}, {a.microbatch})' for a in actions]
            stages = ", ".join(map(str, plan.stages_of(rank)))
            writer.line(f"# rank {rank}, stage {stages}")
            writer.wrapped("(", texts, ",),")
    writer.line(")")
    return writer.text()
