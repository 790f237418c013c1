"""A simulated step over time: the streams of every pp rank, and its memory by kind."""

import json
from dataclasses import dataclass

from .predict import Prediction
from .simulator import Event, Timeline, simulate
from .stage_memory import moments, stage_memories

UPDATE = "optimizer step"  # as pictures call it
# What changes during a step; all else is there throughout.
MOVING = ("activations", "temporaries")


@dataclass(frozen=True)
class Sample:
    """Bytes from one moment to the next: kept for backward or in use, and alive in a function."""

    start_us: float
    end_us: float
    live_bytes: float
    passing_bytes: float


@dataclass(frozen=True)
class RankMemory:
    """fixed: bytes by kind that a rank holds throughout; samples: the rest, in order of time."""

    fixed: tuple[tuple[str, float], ...]
    samples: tuple[Sample, ...]

    @property
    def fixed_bytes(self) -> float:
        return sum(size for _, size in self.fixed)

    @property
    def peak_bytes(self) -> float:
        return self.fixed_bytes + max(s.live_bytes + s.passing_bytes for s in self.samples)


def streams_of(prediction: Prediction) -> Timeline:
    """The step with the events of all streams."""
    return simulate(prediction.model, streams=True)


def memory_of(prediction: Prediction, rank: int) -> RankMemory:
    """Return memory over time; an action counts with its peak from its start to its end."""
    peak = dict(prediction.peaks[rank].bytes_by_kind)
    fixed = tuple((kind, size) for kind, size in peak.items() if kind not in MOVING and size)
    events = (e for e in prediction.timeline.events if e.rank == rank)
    model, samples, at, live = prediction.model, [], 0.0, 0.0
    split = any(action.kind == "W" for action in model.schedule[rank])
    walked = moments(model.schedule[rank], stage_memories(model, rank, split))
    for event, (_, moment, after) in zip(events, walked, strict=True):
        if event.start_us > at:
            samples.append(Sample(at, event.start_us, live, 0.0))
        sizes = moment.live_bytes, moment.passing_bytes
        samples.append(Sample(event.start_us, event.end_us, *sizes))
        at, live = event.end_us, after
    samples.append(Sample(at, prediction.step_us, live, 0.0))
    return RankMemory(fixed, tuple(samples))


def perfetto(prediction: Prediction) -> str:
    """The step as a trace in the Chrome JSON format, which Perfetto opens: a process a pp rank, a
    thread a stream, a counter of memory. Times in us, memory in GiB."""
    rows: list[dict] = []
    for rank in range(len(prediction.peaks)):
        rows.append(named("process_name", rank, 0, f"pp rank {rank}"))
        rows += [named("thread_name", rank, k, name) for k, name in enumerate(STREAMS)]
        rows += _counters(rank, memory_of(prediction, rank))
    rows += map(slice_of, events_of(prediction))
    return json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"})


STREAMS = ("compute", "collective", "transfer", "copy out", "copy back", "end of step")


def events_of(prediction: Prediction) -> tuple[Event, ...]:
    """Return the events of all streams, and on each rank the optimizer's, which ends the step."""
    events = streams_of(prediction).events
    times = max(event.end_us for event in events), prediction.step_us
    ends = (Event(rank, UPDATE, *times, STREAMS[-1]) for rank in range(len(prediction.peaks)))
    return (*events, *ends)


def named(what: str, rank: int, stream: int, name: str) -> dict:
    """Return the row of a trace that names a process or one of its threads."""
    return {"ph": "M", "name": what, "pid": rank, "tid": stream, "args": {"name": name}}


def slice_of(event: Event) -> dict:
    """Return an event as a row of a trace."""
    return {
        "ph": "X",
        "name": event.action,
        "cat": event.stream,
        "pid": event.rank,
        "tid": STREAMS.index(event.stream),
        "ts": event.start_us,
        "dur": event.end_us - event.start_us,
    }


def _counters(rank: int, memory: RankMemory) -> list[dict]:
    gib = 2.0**30
    fixed = {kind: size / gib for kind, size in memory.fixed}
    return [
        {
            "ph": "C",
            "name": "memory, GiB",
            "pid": rank,
            "ts": sample.start_us,
            "args": fixed
            | {"activations": sample.live_bytes / gib, "temporaries": sample.passing_bytes / gib},
        }
        for sample in memory.samples
    ]
