"""One save on one rank, from copies on their way to files on the disk; it never has to wait."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.train.saving.client import Writer, WriterFailed
from brim.train.saving.layout import File
from brim.train.saving.staging import Staging


@dataclass(slots=True)
class Job:
    """The save ``number`` of a run; requests are sent one after the other."""

    number: int
    step: int
    folder: Path
    """Where it is written."""
    target: Path
    """The name it gets."""
    writer: Writer
    staging: Staging
    committing: bool = False
    """All ranks have written; the same on all of them."""
    why: str = ""
    """Why it failed on this rank."""
    _queue: list[Mapping[str, Any]] = field(default_factory=list)
    _open: int | None = None

    def add(self, **request: Any) -> None:
        """A request for the process that writes."""
        self._queue.append({"folder": str(self.folder), **request})

    def add_files(
        self, files: Sequence[File], starts: Sequence[int], texts: Mapping[str, str], need: int
    ) -> None:
        """Write ``files``, staged at ``starts``; all ranks together write ``need`` bytes."""
        listed = [
            {
                "name": file.name,
                "header": base64.b64encode(file.header()).decode(),
                "start": start,
                "stop": start + file.nbytes,
            }
            for file, start in zip(files, starts, strict=True)
        ]
        self.add(do="write", files=listed, texts=texts, need=need)

    @property
    def idle(self) -> bool:
        """Whether everything asked for so far is done."""
        return not (self._queue or self.why) and self._open is None

    def advance(self, *, wait: bool = False) -> None:
        """Send what may be sent and take the answers that are there, or all with ``wait``."""
        try:
            while self._queue or self._open is not None:
                if not self._send(wait) or self.writer.answer(self._open or 0, wait=wait) is None:
                    return
                self._open = None
        except WriterFailed as error:
            self.why = str(error)
            self._queue.clear()
            self._open = None

    def _send(self, wait: bool) -> bool:
        if self._open is None:
            if wait:
                self.staging.wait()
            elif not self.staging.ready():
                return False
            self._open = self.writer.ask(self._queue.pop(0))
        return True
