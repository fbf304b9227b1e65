"""Records in Arrow tables: parquet files and Hugging Face datasets, pictures embedded or named.

Rows are wanted in any order, and a parquet row group decodes only whole, so a parquet file is
written once as an uncompressed Arrow file into the cache folder and mapped from there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from brim.data.quarantine import BadSample, Where
from brim.errors import InputError, MissingExtra


class Parquet:
    """One parquet file; ``cache`` receives its Arrow copy."""

    def __init__(self, path: Path, cache: Path) -> None:
        self.path, self.cache = path, cache
        try:
            self._meta = pq.read_metadata(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{path}: no parquet file: {error}") from None
        if not self._meta.num_rows:
            raise InputError(f"{path}: holds no sample")
        self._copy = cache / f"{path.stem}-{self.fingerprint()}.arrow"
        if not self._copy.exists():
            self._write_copy()
        self._map = pa.memory_map(str(self._copy))
        file = pa.ipc.open_file(self._map)
        self._batches: list[Any] = [file.get_batch(k) for k in range(file.num_record_batches)]
        self._ends = np.cumsum([batch.num_rows for batch in self._batches])

    def __len__(self) -> int:
        return int(self._meta.num_rows)

    def __reduce__(self) -> tuple[type[Parquet], tuple[Path, Path]]:
        return type(self), (self.path, self.cache)

    def where(self, index: int) -> Where:
        return Where(str(self.path), index + 1)

    def record(self, index: int) -> Any:
        """The row as a dict of Python values.  Raises BadSample."""
        try:
            k = int(np.searchsorted(self._ends, index, side="right"))
            start = int(self._ends[k]) - self._batches[k].num_rows
            return self._batches[k].slice(index - start, 1).to_pylist()[0]
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise BadSample("parquet.value", str(error)) from None

    def fingerprint(self) -> str:
        """Of the footer (it holds offsets, sizes and statistics of all columns) and the size."""
        footer = repr(self._meta.to_dict()).encode()
        return xxhash.xxh3_64_hexdigest(footer + str(self.path.stat().st_size).encode())

    def _write_copy(self) -> None:
        self.cache.mkdir(parents=True, exist_ok=True)
        temporary = self._copy.with_name(f".{self._copy.name}.{os.getpid()}.tmp")
        file = pq.ParquetFile(self.path)
        try:
            with (
                pa.OSFile(str(temporary), "wb") as sink,
                pa.ipc.new_file(sink, file.schema_arrow) as writer,
            ):
                for batch in file.iter_batches(batch_size=256):
                    writer.write_batch(batch)
            temporary.replace(self._copy)
        finally:
            temporary.unlink(missing_ok=True)


class HubDataset:
    """A Hugging Face dataset: a folder of ``save_to_disk``, a local folder, or a hub id.

    Pictures stay encoded (``Image(decode=False)``): their bytes are decoded by brim's policy.
    """

    def __init__(self, name: str, split: str = "train") -> None:
        self.name, self.split = name, split
        self._rows: Any = _load(name, split)
        if not len(self._rows):
            raise InputError(f"{name}: its split {split} holds no sample")

    def __len__(self) -> int:
        return len(self._rows)

    def __reduce__(self) -> tuple[type[HubDataset], tuple[str, str]]:
        return type(self), (self.name, self.split)

    def where(self, index: int) -> Where:
        return Where(self.name, index + 1)

    def record(self, index: int) -> Any:
        """The row as a dict of Python values.  Raises BadSample."""
        try:
            return self._rows[index]
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise BadSample("dataset.value", str(error)) from None

    def fingerprint(self) -> str:
        """datasets' own: it covers the files and every transformation."""
        return str(self._rows._fingerprint)


def _load(name: str, split: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtra(f"the dataset {name}", package="datasets", extra="datasets") from None
    try:
        if (Path(name) / "state.json").exists() or (Path(name) / "dataset_dict.json").exists():
            rows = datasets.load_from_disk(name)
        else:
            rows = datasets.load_dataset(name)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise InputError(f"{name}: cannot be loaded as a dataset: {error}") from None
    if isinstance(rows, datasets.DatasetDict):
        if split not in rows:
            raise InputError(f"{name}: has no split {split}; it has {', '.join(rows)}")
        rows = rows[split]
    return rows.cast(_encoded(datasets, rows.features))


def _encoded(datasets: Any, feature: Any) -> Any:
    """The same features with every image and video left as its file's bytes."""
    for kind in (datasets.Image, datasets.Video):
        if isinstance(feature, kind):
            return kind(decode=False)
    if isinstance(feature, datasets.Features):
        return datasets.Features({k: _encoded(datasets, v) for k, v in feature.items()})
    if isinstance(feature, dict):
        return {k: _encoded(datasets, v) for k, v in feature.items()}
    if isinstance(feature, datasets.List):
        return datasets.List(_encoded(datasets, feature.feature), length=feature.length)
    return feature
