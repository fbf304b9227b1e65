"""A rank of torchrun: trains, and dies once as its file says."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DiesOnce:
    """SIGKILL as one rank fetches the rows of a step; a file remembers that it happened."""

    at: int
    who: int
    done: Path

    def __call__(self, rank: int, step: int) -> None:
        if (rank, step) == (self.who, self.at) and not self.done.exists():
            self.done.touch()
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    import torch
    from tests.train import ranked

    from brim.train.parallel.ranks import join

    torch.set_num_threads(1)
    output = Path(sys.argv[1])
    hook = DiesOnce(int(sys.argv[2]), int(sys.argv[3]), output / "died")
    options = {"steps": 8, "rows": 2, "save_steps": 2, "hook": hook}
    ranks = join()
    finished, said = ranked.run(ranks, str(output), options)
    print("\n".join(said))
    ranks.leave()
    sys.exit(0 if finished else 75)
