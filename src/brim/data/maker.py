"""From a sample's number to a document: read, tokenize, decode, resize; or a replacement.

A sample that turns out bad is quarantined, and another of nearly its length takes its place.
Which one is decided by the row and the place alone, so a resumed run makes the same choice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from brim.data.chat import Clip, Image, Ref, Video, name_of
from brim.data.decode import DecodePolicy, Pixels, decode
from brim.data.geometry import Grid, Vision, smart_resize, video_grid
from brim.data.header import read_header
from brim.data.imagecache import ImageCache
from brim.data.nvjpeg import GpuJpegs
from brim.data.plan import RowTask
from brim.data.quarantine import BadSample, Quarantine
from brim.data.resize import resize
from brim.data.rows import Document, Picture
from brim.data.samples import Samples, limited
from brim.data.sources import Source
from brim.data.store import Store
from brim.data.tokens import ChatTokens
from brim.data.video import Sampling, chosen, decoded

_ATTEMPTS = 16
STAGES = ("read", "text", "decode", "resize", "cache")


@dataclass(slots=True)
class Stopwatch:
    """Wall and CPU seconds of one thread's stages."""

    wall: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    cpu: float = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.wall[name] += time.perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Makes documents.  Picklable, thread-safe."""

    sources: list[Source]
    samples: Samples
    tokens: ChatTokens
    vision: Vision
    policy: DecodePolicy
    tokens_per_row: int
    sampling: Sampling = field(default_factory=Sampling)
    cache: ImageCache | None = None
    gpu: GpuJpegs | None = None
    """Decodes JPEGs in the CPU's place."""

    def document(self, sample: int, clock: Stopwatch) -> Document:
        """The document of a sample.  Raises BadSample."""
        samples = self.samples
        source = self.sources[int(samples.source[sample])]
        with clock.stage("read"):
            conversation = source.conversation(int(samples.record[sample]))
            conversation = chosen(conversation, source.store, self.sampling)
        with clock.stage("text"):
            encoded = self.tokens.encode(conversation)
        vision = limited(self.vision, int(samples.max_pixels[sample]))
        pictures = []
        for part in conversation.pictures():
            try:
                pictures.append(self._picture(part, source.store, vision, clock))
            except BadSample as bad:
                bad.image = name_of(part)
                raise
        planned = int(samples.length[sample])
        found = len(encoded.ids) + sum(p.grid.tokens(vision.merge) for p in pictures)
        cut = planned == self.tokens_per_row and found > planned
        if found != planned and not cut:
            raise BadSample(
                "sample.changed", f"{found} tokens; it had {planned} when the plan was made"
            )
        with clock.stage("text"):
            return Document(
                sample, encoded, pictures, self.tokens, vision.merge, planned if cut else None
            )

    def stand_in(self, task: RowTask, place: int, attempt: int) -> int | None:
        """The sample that replaces the one at ``place`` of a row; None when enough were tried.

        One without pictures is replaced by one without: ranks rely on the plan for which rows have
        any (``Plan.tower``).
        """
        if attempt > _ATTEMPTS:
            return None
        sample = task.samples[place]
        length = int(self.samples.length[sample])
        order, lengths = self._by_length(pictures=bool(self.samples.patches[sample]))
        high = int(np.searchsorted(lengths, length, side="right"))
        low = min(int(np.searchsorted(lengths, 0.9 * length)), max(0, high - 64))
        seed = np.random.SeedSequence([task.salt, place, attempt])
        return int(order[low + int(seed.generate_state(1)[0]) % (high - low)])

    def make(
        self, task: RowTask, place: int, quarantine: Quarantine, clock: Stopwatch, guard: Guard
    ) -> Document | None:
        """The document at ``place`` of a row, replaced as often as needed; None: left out."""
        sample: int | None = task.samples[place]
        attempt = 0
        while sample is not None:
            try:
                with guard.watching(sample):
                    return self._within_memory(sample, clock)
            except BadSample as bad:
                source = self.sources[int(self.samples.source[sample])]
                quarantine.add(source.records.where(int(self.samples.record[sample])), bad)
            attempt += 1
            sample = self.stand_in(task, place, attempt)
        return None

    def _within_memory(self, sample: int, clock: Stopwatch) -> Document:
        try:
            return self.document(sample, clock)
        except MemoryError:
            raise BadSample("sample.memory", "it needs more memory than the loader has") from None

    def _by_length(self, *, pictures: bool) -> tuple[np.ndarray, np.ndarray]:
        """(samples, their lengths) by length: all, or those without pictures."""
        kept = self.__dict__.setdefault("_sorted", {})
        if pictures not in kept:
            order = np.argsort(self.samples.length, kind="stable")
            if not pictures:
                order = order[self.samples.patches[order] == 0]
            kept[pictures] = order, self.samples.length[order]
        found: tuple[np.ndarray, np.ndarray] = kept[pictures]
        return found

    def _picture(
        self, part: Image | Video, store: Store, vision: Vision, clock: Stopwatch
    ) -> Picture:
        if isinstance(part, Image):
            pixels = self._image(part.ref, store, vision, clock)
            grid = Grid(1, pixels.shape[0] // vision.patch, pixels.shape[1] // vision.patch)
            return Picture((pixels,), False, grid)
        if part.clip is not None:
            return self._clip(part, part.clip, store, vision, clock)
        with clock.stage("read"):
            data = [store.read(ref) for ref in part.frames]
        height, width = read_header(data[0]).upright(self.policy.rotate)
        grid = video_grid(len(data), height, width, vision)
        size = grid.h * vision.patch, grid.w * vision.patch
        return Picture(tuple(self._frame(d, size, clock) for d in data), True, grid)

    def _clip(
        self, part: Video, clip: Clip, store: Store, vision: Vision, clock: Stopwatch
    ) -> Picture:
        grid = video_grid(len(clip.frames), clip.height, clip.width, vision)
        size = grid.h * vision.patch, grid.w * vision.patch
        assert part.file is not None
        frames: list[Pixels] = []
        with clock.stage("read"):
            batches = decoded(store.video(part.file), clip)
        while True:
            with clock.stage("decode"):
                batch = next(batches, None)
            if batch is None:
                return Picture(tuple(frames), True, grid)
            with clock.stage("resize"):
                # a frame that fits is copied, or it would keep the decoder's whole batch
                resized = [(frame, resize(frame, *size)) for frame in batch]
                frames += [new.copy() if new is frame else new for frame, new in resized]

    def _image(self, ref: Ref, store: Store, vision: Vision, clock: Stopwatch) -> Pixels:
        with clock.stage("read"):
            data = store.read(ref)
        target = smart_resize(*read_header(data).upright(self.policy.rotate), vision)
        if self.cache is None:
            return self._frame(data, target, clock)
        with clock.stage("cache"):
            key = self.cache.key(data, target, self.policy, nvjpeg=self.gpu is not None)
            found = self.cache.get(key, target)
        if found is not None:
            return found
        start = time.perf_counter()
        pixels = self._frame(data, target, clock)
        spent = time.perf_counter() - start
        with clock.stage("cache"):
            self.cache.offer(key, pixels, spent)
        return pixels

    def _frame(self, data: bytes, target: tuple[int, int], clock: Stopwatch) -> Pixels:
        with clock.stage("decode"):
            pixels = self.gpu.load(data, target, self.policy) if self.gpu else None
            if pixels is None:
                pixels = decode(data, self.policy, target=target)
        with clock.stage("resize"):
            return resize(pixels, *target)


class Guard:
    """Told which sample a thread is at, so that a dead process leaves its suspects behind."""

    @contextmanager
    def watching(self, sample: int) -> Iterator[None]:
        """Raises BadSample for a sample that is known to kill the process."""
        yield
