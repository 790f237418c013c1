"""The 1f1b schedule of golden-llama: one list of actions a pp rank.

(kind, stage, micro-batch): F forward, B backward or its halves I (gradient of the
stage's input) and W (gradients of its weights); SEND_F, RECV_F, SEND_B, RECV_B move
activations and their gradients between ranks; STEP updates the weights.
"""

SCHEDULES = (
    # rank 0, stage 0
    (("F", 0, 0), ("B", 0, 0), ("F", 0, 1), ("B", 0, 1), ("STEP", -1, -1),),
)
