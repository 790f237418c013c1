"""The zbv schedule of golden-llama: one list of actions a pp rank.

(kind, stage, micro-batch): F forward, B backward or its halves I (gradient of the
stage's input) and W (gradients of its weights); SEND_F, RECV_F, SEND_B, RECV_B move
activations and their gradients between ranks; STEP updates the weights.
"""

SCHEDULES = (
    # rank 0, stage 0, 3
    (
        ("F", 0, 0), ("SEND_F", 0, 0), ("F", 0, 1), ("SEND_F", 0, 1), ("F", 0, 2),
        ("SEND_F", 0, 2), ("RECV_F", 3, 0), ("F", 3, 0), ("I", 3, 0), ("SEND_B", 3, 0),
        ("W", 3, 0), ("RECV_F", 3, 1), ("F", 3, 1), ("I", 3, 1), ("SEND_B", 3, 1), ("W", 3, 1),
        ("F", 0, 3), ("SEND_F", 0, 3), ("RECV_B", 0, 0), ("I", 0, 0), ("W", 0, 0),
        ("RECV_F", 3, 2), ("F", 3, 2), ("I", 3, 2), ("SEND_B", 3, 2), ("W", 3, 2),
        ("RECV_B", 0, 1), ("I", 0, 1), ("W", 0, 1), ("RECV_F", 3, 3), ("F", 3, 3), ("I", 3, 3),
        ("SEND_B", 3, 3), ("W", 3, 3), ("RECV_B", 0, 2), ("I", 0, 2), ("W", 0, 2),
        ("RECV_B", 0, 3), ("I", 0, 3), ("W", 0, 3), ("STEP", -1, -1),
    ),
    # rank 1, stage 1, 2
    (
        ("RECV_F", 1, 0), ("F", 1, 0), ("F", 2, 0), ("SEND_F", 2, 0), ("RECV_F", 1, 1),
        ("F", 1, 1), ("F", 2, 1), ("SEND_F", 2, 1), ("RECV_B", 2, 0), ("I", 2, 0), ("W", 2, 0),
        ("RECV_F", 1, 2), ("F", 1, 2), ("I", 1, 0), ("SEND_B", 1, 0), ("W", 1, 0), ("F", 2, 2),
        ("SEND_F", 2, 2), ("RECV_B", 2, 1), ("I", 2, 1), ("W", 2, 1), ("RECV_F", 1, 3),
        ("F", 1, 3), ("I", 1, 1), ("SEND_B", 1, 1), ("W", 1, 1), ("F", 2, 3), ("SEND_F", 2, 3),
        ("RECV_B", 2, 2), ("I", 2, 2), ("W", 2, 2), ("I", 1, 2), ("SEND_B", 1, 2),
        ("RECV_B", 2, 3), ("I", 2, 3), ("I", 1, 3), ("SEND_B", 1, 3), ("W", 1, 2), ("W", 2, 3),
        ("W", 1, 3), ("STEP", -1, -1),
    ),
)
