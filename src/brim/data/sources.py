"""Sources of samples: what the configuration names, opened by what it is.

====================================  ==================================================
``a.jsonl``, ``a.json``               JSON lines; a JSON array
``a.parquet``                         parquet
``a.tar``                             WebDataset
a folder                              all files of the above kinds in it, or a saved
                                      Hugging Face dataset
``hf:user/name``                      a Hugging Face dataset from the hub
``s3://…``, ``gs://…``, ``https://…``  a file of these kinds, through fsspec, copied to the
                                      cache once
====================================  ==================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from brim.data.chat import Conversation, parse
from brim.data.lines import Lines
from brim.data.quarantine import Where
from brim.data.store import Store, default_root
from brim.data.table import HubDataset, Parquet
from brim.data.tars import Tar
from brim.errors import ConfigError, InputError, in_a_line


class Records(Protocol):
    """Records of one file by number; cheap to send to another process."""

    def __len__(self) -> int: ...
    def record(self, index: int) -> Any: ...
    def where(self, index: int) -> Where: ...
    def fingerprint(self) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """One entry of ``data.sources``."""

    path: str = ""
    """A file, a folder, ``hf:user/name``, or an fsspec URL."""
    image_root: str = ""
    """Folder or URL under which pictures are found; empty: the folder of the file."""
    weight: float = 1.0
    """How often an epoch shows each sample: 0.5 half of them, drawn anew; 2 each twice."""
    split: str = "train"
    """The split of a Hugging Face dataset."""
    allow_hosts: tuple[str, ...] = ()
    """Hosts from which pictures may be fetched by http(s); none by default."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("data.sources has an entry without a path")
        if not 0 < self.weight <= 1000:
            raise ConfigError(
                f"data.sources: the weight of {self.path} is {self.weight}; it must be above 0"
            )


@dataclass(frozen=True, slots=True)
class Source:
    """Records, the place of their pictures, and their share of an epoch."""

    records: Records
    store: Store
    weight: float

    def __len__(self) -> int:
        return len(self.records)

    def conversation(self, index: int) -> Conversation:
        """Raises BadSample."""
        return parse(self.records.record(index))


def open_sources(configs: Sequence[SourceConfig], cache: Path | None = None) -> list[Source]:
    """All files of all entries, in a stable order.  Raises InputError, naming the file."""
    if not configs:
        raise ConfigError("data.sources is empty; name at least one file, folder or dataset")
    return [source for config in configs for source in _open(config, cache)]


def cache_folder(beside: Path) -> Path:
    """``.brim`` beside the data, or in the user's cache where the data cannot be written."""
    folder = beside / ".brim"
    try:
        folder.mkdir(exist_ok=True)
        return folder
    except OSError:
        pass
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "brim" / str(beside.resolve()).strip("/").replace("/", "--")


def _open(config: SourceConfig, cache: Path | None) -> Iterator[Source]:
    if config.path.startswith("hf:"):
        yield _source(config, HubDataset(config.path[3:], config.split), ".")
        return
    path = _local(config.path, cache)
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        yield _source(config, HubDataset(str(path), config.split), str(path))
        return
    for file in _files(path):
        folder = cache or cache_folder(file.parent)
        yield _source(config, _reader(file, folder), default_root(file))


def _source(config: SourceConfig, records: Records, root: str) -> Source:
    store = Store(root=config.image_root or root, allow_hosts=config.allow_hosts)
    return Source(records, store, config.weight)


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder")
    if path.is_file():
        return [path]
    found = sorted(p for p in path.iterdir() if p.suffix in _READERS and not p.name.startswith("."))
    if not found:
        raise InputError(f"{path}: no {', '.join(_READERS)} file in this folder")
    return found


def _reader(path: Path, cache: Path) -> Records:
    if path.suffix not in _READERS:
        raise InputError(f"{path}: its name ends in none of {', '.join(_READERS)}")
    if path.suffix == ".parquet":
        return Parquet(path, cache)
    if path.suffix == ".tar":
        return Tar(path)
    return Lines(path)


_READERS = (".jsonl", ".json", ".parquet", ".tar")


def _local(path: str, cache: Path | None) -> Path:
    """A local path; a URL's file is copied to the cache first, once."""
    if "://" not in path:
        return Path(path)
    import fsspec

    folder = cache or cache_folder(Path.cwd())
    try:
        local = fsspec.open_local(
            f"filecache::{path}",
            filecache={"cache_storage": str(folder / "files"), "same_names": True},
        )
    except Exception as error:  # each file system of fsspec has its own
        raise InputError(f"{path}: cannot be fetched: {in_a_line(error)}") from None
    return Path(str(local))
