"""What other tuners find on one job: photographs decoded in the training process, a small ViT.

    PYTHON benchmarks/tune_peers.py --photos FOLDER [--seconds 8] [--pictures 512]

PYTHON has torch and pillow, and of ``lightning`` and ``tensorflow`` what is to be compared.

job        the job as it is (``jobs/photo_classifier.py``)
lightning  BatchSizeFinder, as its documentation calls it: the batch size that it ends at, and the
           job's speed with that
tf.data    the same pictures through ``map``, one after the other, and with ``AUTOTUNE`` for map and
           prefetch, into the same training step

Each prints samples a second and the share of its time that the step waits for its batch, a line of
JSON each.  ``brim tune -- PYTHON benchmarks/jobs/photo_classifier.py --photos FOLDER`` is the other
side.  DeepSpeed's autotuner needs GPUs and ``spdl.autoresearch`` a language model: neither is here.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parent / "jobs"))

from photo_classifier import CLASSES, SIDE, Photos, make, step

BATCH = 4
Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


def speed(batches: Batches, seconds: float) -> dict[str, float]:
    """Of the training loop, after three steps that warm up."""
    model, optimizer = make()
    feed = forever(batches)
    for _ in range(3):
        step(model, optimizer, *next(feed))
    begin, waited, samples = time.perf_counter(), 0.0, 0
    while time.perf_counter() - begin < seconds:
        asked = time.perf_counter()
        pixels, labels = next(feed)
        waited += time.perf_counter() - asked
        step(model, optimizer, pixels, labels)
        samples += len(labels)
    wall = time.perf_counter() - begin
    return {"samples_s": samples / wall, "wait_share": waited / wall}


def forever(batches: Batches) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        yield from batches


def section_job(folder: Path, pictures: int, seconds: float) -> dict[str, Any]:
    loader = DataLoader(Photos(folder, pictures), BATCH, shuffle=True)
    return {"batch_size": BATCH, **speed(loader, seconds)}


def section_lightning(folder: Path, pictures: int, seconds: float) -> dict[str, Any]:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self, batch_size: int) -> None:
            super().__init__()
            self.batch_size = batch_size
            self.model, self.made = make()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            pixels, labels = batch
            return torch.nn.functional.cross_entropy(self.model(pixels), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.made

        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(Photos(folder, pictures), self.batch_size, shuffle=True)

    with tempfile.TemporaryDirectory() as scratch:  # the finder saves and restores the weights
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=scratch,
        )  # fmt: skip
        tuner = lightning.pytorch.tuner.Tuner(trainer)
        begin = time.perf_counter()
        found = tuner.scale_batch_size(Module(BATCH), init_val=BATCH)
        spent = time.perf_counter() - begin
    loader = DataLoader(Photos(folder, pictures), found, shuffle=True)
    return {"batch_size": found, "search_s": spent, **speed(loader, seconds)}


def section_tf_data(folder: Path, pictures: int, seconds: float) -> dict[str, Any]:
    return {
        "one_by_one": speed(TfBatches(folder, pictures, parallel=False), seconds),
        "autotune": speed(TfBatches(folder, pictures, parallel=True), seconds),
    }


class TfBatches:
    """The job's pictures by tf.data, as tensors of torch."""

    def __init__(self, folder: Path, pictures: int, *, parallel: bool) -> None:
        import tensorflow as tf

        files = [str(path) for path in sorted(folder.glob("*.jpg"))]

        def load(index: Any) -> Any:
            data = tf.io.read_file(tf.gather(files, index % len(files)))
            image = tf.io.decode_jpeg(data, channels=3)
            resized = tf.image.resize(image, (SIDE, SIDE), "bicubic", antialias=True)
            return resized / 127.5 - 1, index % CLASSES

        many = tf.data.AUTOTUNE if parallel else None
        found = tf.data.Dataset.range(pictures).shuffle(pictures, seed=0)
        found = found.map(load, num_parallel_calls=many).batch(BATCH)
        self.batches = found.prefetch(tf.data.AUTOTUNE) if parallel else found

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for pixels, labels in self.batches.as_numpy_iterator():
            # numpy shows what tf.data owns; the training step may not write there
            yield torch.tensor(pixels).permute(0, 3, 1, 2), torch.tensor(labels)


SECTIONS: dict[str, tuple[str, Callable[[Path, int, float], dict[str, Any]]]] = {
    "job": ("torch", section_job),
    "lightning": ("lightning", section_lightning),
    "tf.data": ("tensorflow", section_tf_data),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, required=True, help="a folder of JPEG photographs")
    parser.add_argument("--seconds", type=float, default=8, help="of each measurement")
    parser.add_argument("--pictures", type=int, default=512, help="of the data set")
    args = parser.parse_args()
    for name, (package, section) in SECTIONS.items():
        if importlib.util.find_spec(package) is None:
            print(json.dumps({name: f"{package} is not installed"}), flush=True)
            continue
        found = section(args.photos, args.pictures, args.seconds)
        print(json.dumps({name: found, "version": version(package)}), flush=True)


def version(package: str) -> str:
    """Of the module, whatever its distribution is called."""
    names = importlib.metadata.packages_distributions()[package]
    return importlib.metadata.version(names[0])


if __name__ == "__main__":
    main()
