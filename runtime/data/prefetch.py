"""Batches read ahead in a background thread, so that the step waits for no disk."""

import queue
import threading
from itertools import count

from .batches import Batch, Reader

POLL_S = 0.1  # how soon a closed prefetcher's thread ends


class Prefetcher:
    """The rows start..stop of each step, in order, up to `depth` steps ahead.

    Asking for any other step than the next one starts anew from there (after a resume, say).
    """

    def __init__(self, reader: Reader, start: int, stop: int, depth: int = 2) -> None:
        self.reader, self.start, self.stop, self.depth = reader, start, stop, depth
        self._next: int | None = None
        self._thread: threading.Thread | None = None

    def take(self, step: int) -> Batch:
        """The batch of `step`; raises what reading it raised."""
        if step != self._next or self._thread is None:
            self._begin(step)
        item = self._ready.get()
        if isinstance(item, BaseException):
            self.close()
            raise item
        self._next = step + 1
        return item

    def _begin(self, step: int) -> None:
        self.close()
        # Each thread has a queue and a flag of its own: one that ends late disturbs no other.
        self._ready: queue.Queue[Batch | BaseException] = queue.Queue(self.depth)
        self._closing = threading.Event()
        arguments = (step, self._ready, self._closing)
        self._thread = threading.Thread(target=self._read, args=arguments, daemon=True)
        self._thread.start()

    def _read(self, first: int, ready: queue.Queue, closing: threading.Event) -> None:
        for step in count(first):
            item: Batch | BaseException
            try:
                item = self.reader.rows(step, self.start, self.stop)
            except Exception as error:
                item = error
            while not closing.is_set():
                try:
                    ready.put(item, timeout=POLL_S)
                    break
                except queue.Full:
                    continue
            if closing.is_set() or isinstance(item, BaseException):
                return

    def restore(self, step: int, state: dict) -> None:
        """Let the reader go on before `step`; no thread of ours reads meanwhile."""
        self.close()
        self.reader.restore(step, state)

    def close(self) -> None:
        """End the thread; the next `take` starts another."""
        if self._thread is not None:
            self._closing.set()
            self._thread.join()
        self._thread, self._next = None, None
