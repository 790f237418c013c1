"""The 1f1b schedule of golden-llama: one list of actions a pp rank.

(kind, stage, micro-batch): F forward, B backward or its halves I (gradient of the
stage's input) and W (gradients of its weights); SEND_F, RECV_F, SEND_B, RECV_B move
activations and their gradients between ranks; STEP updates the weights.
"""

SCHEDULES = (
    # rank 0, stage 0
    (
        ("F", 0, 0), ("SEND_F", 0, 0), ("F", 0, 1), ("SEND_F", 0, 1), ("RECV_B", 0, 0),
        ("B", 0, 0), ("F", 0, 2), ("SEND_F", 0, 2), ("RECV_B", 0, 1), ("B", 0, 1), ("F", 0, 3),
        ("SEND_F", 0, 3), ("RECV_B", 0, 2), ("B", 0, 2), ("RECV_B", 0, 3), ("B", 0, 3),
        ("STEP", -1, -1),
    ),
    # rank 1, stage 1
    (
        ("RECV_F", 1, 0), ("F", 1, 0), ("B", 1, 0), ("SEND_B", 1, 0), ("RECV_F", 1, 1),
        ("F", 1, 1), ("B", 1, 1), ("SEND_B", 1, 1), ("RECV_F", 1, 2), ("F", 1, 2), ("B", 1, 2),
        ("SEND_B", 1, 2), ("RECV_F", 1, 3), ("F", 1, 3), ("B", 1, 3), ("SEND_B", 1, 3),
        ("STEP", -1, -1),
    ),
)
