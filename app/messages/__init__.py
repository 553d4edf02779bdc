"""The only package that knows Flower's records: what each message holds, and how clients share one.

A node hosts a cohort of clients: ``cohort_message`` asks several of them, ``answer`` has each answer, ``split`` takes
the joined reply apart. Records and plain values are in records.py, one client's content in client.py, joined messages
in cohort.py, the first messages in places.py.
"""

from app.messages.client import (
    Evaluation,
    described_reply,
    evaluate_reply,
    is_missing,
    metrics_record,
    number,
    question_content,
    read_answer,
    read_clamped,
    read_digest,
    read_evaluation,
    read_loss,
    read_question,
    read_rate,
    read_round,
    read_statistics,
    read_steps,
    read_text,
    read_update,
    read_weights,
    statistics_content,
    text_content,
    train_reply,
    write_steps,
)
from app.messages.cohort import (
    CLIENT_ERROR,
    answer,
    asked,
    cohort_message,
    cohort_record,
    error_reply,
    join,
    peak_memory_mb,
    read_clients,
    split,
)
from app.messages.places import (
    Agreed,
    node_place,
    place_reply,
    place_request,
    read_place,
    read_site,
    site_reply,
    site_request,
)
from app.messages.records import (
    AGREED,
    ARRAYS,
    COHORT,
    CONFIG,
    EVALUATE,
    FINAL,
    GEOMETRY,
    HELLO,
    METRICS,
    PLACE,
    STATISTICS,
    SUMS,
    TRAIN,
    Part,
    View,
    as_sent,
    from_record,
    part,
    payload_bytes,
    request,
    split_weights,
    taken_over,
    to_record,
    view_record,
    weights_record,
)

__all__ = [
    "AGREED", "ARRAYS", "CLIENT_ERROR", "COHORT", "CONFIG", "EVALUATE", "FINAL", "GEOMETRY", "HELLO", "METRICS",
    "PLACE", "STATISTICS", "SUMS", "TRAIN", "Agreed", "Evaluation", "Part", "View", "answer", "as_sent",
    "asked", "cohort_message", "cohort_record", "described_reply", "error_reply", "evaluate_reply",
    "from_record", "is_missing", "join", "metrics_record", "node_place", "number", "part", "payload_bytes",
    "peak_memory_mb", "place_reply", "place_request", "question_content", "read_answer", "read_clamped",
    "read_clients", "read_digest", "read_evaluation", "read_loss", "read_place", "read_question", "read_rate",
    "read_round", "read_site", "read_statistics", "read_steps", "read_text", "read_update", "read_weights",
    "request", "site_reply", "site_request", "split", "split_weights", "statistics_content", "taken_over",
    "text_content", "to_record", "train_reply", "view_record", "weights_record", "write_steps",
]
