"""What a stack of the training thread stands for.

A stack is judged by the libraries and functions in it, nearest the leaf first where that matters.
Nothing is guessed: what no rule knows is :data:`PYTHON`, which ends as ``unknown``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from brim.record.steps import Frame, Stack

COMPUTE: Final = "compute"
RECOMPUTE: Final = "recompute"
COMPILE: Final = "compile"
SAVE: Final = "save"
LOG: Final = "log"
EVALUATE: Final = "evaluate"
PREPARE: Final = "prepare"
"""Decoding, transforming, collating, tokenizing: work on samples."""
FETCH: Final = "fetch"
"""In a client of something far away: a socket, HTTP, an object store."""
QUEUE: Final = "queue"
"""Blocked in a queue that another thread or process fills."""
METRIC: Final = "metric"
"""Counting how well the model does, off the device."""
COPY: Final = "copy"
"""Copying or averaging the weights beside training."""
NOW_AND_THEN: Final = "now and then"
"""What only long steps do, whatever it is called: see ``evidence``."""
TRACE: Final = "trace"
"""A tracer, or the bookkeeping of anomaly mode."""
SLEEP: Final = "sleep"
COMM: Final = "comm"
PYTHON: Final = "python"

# Frames that only run while code is compiled; calling what was compiled does not pass through.
_COMPILERS = re.compile(
    r"/torch/_dynamo/(convert_frame|symbolic_convert|output_graph|bytecode_transformation)\.py"
    r"|/torch/_inductor/(compile_fx|graph|scheduler|codecache|lowering|async_compile|cpp_builder)"
    r"|/torch/_functorch/(aot_autograd|_aot_autograd/(graph_capture|graph_compile|jit_compile))"
    r"|/torch/fx/experimental/proxy_tensor\.py|/torch/utils/cpp_extension\.py"
    r"|/triton/compiler/|/triton/backends/|/numba/core/(compiler|dispatcher)"
)
_SAVERS = re.compile(r"/safetensors/|/torch/distributed/checkpoint/")
_SAVE_NAMES = re.compile(
    r"(^|[._])(_?save(_\w+)?|\w*checkpoint_(save|write)|write_checkpoint|dump_state|snapshot|push_to_hub"
    r"|upload_(file|folder))$"
)
_LOGGERS = re.compile(
    r"/(tensorboard|tensorboardX|wandb|mlflow|comet_ml|neptune|clearml|swanlab|trackio|aim)/"
    r"|/torch/utils/tensorboard/|/logging/__init__\.py|/matplotlib/|/loguru/"
    r"|/numpy/lib/_?histograms|/json/encoder\.py|/tqdm/|/rich/|/pandas/io/formats/"
)
_WRITERS = re.compile(r"(^|[._])(dumps?|to_(csv|json|parquet|excel|html|sql)|writerows?|savefig)$")
_LOG_NAMES = re.compile(
    r"(^|[._])(log|logs|logging|logger|report|track|visuali[sz]e|plot|summary|histogram|dump|metrics"
    r"|upload|monitor|telemetry)s?($|_)|_(log|logger|metrics|stats|report|histograms?|dump)$",
    re.IGNORECASE,
)
_EVALUATORS = re.compile(
    r"(^|[._])(eval|evaluate|evaluation|evaluation_loop|validate|validation|valid|prediction_step"
    r"|prediction_loop|predict|run_eval|test)($|_(loop|step|epoch|model|one_epoch|set|loss|batch)$)"
)
_PREPARERS = re.compile(
    r"/(PIL|cv2|albumentations|imgaug|skimage|kornia|imageio|decord|av|torchcodec|librosa|soundfile"
    r"|webdataset|qwen_vl_utils|datasets|tokenizers|simplejpeg|nltk|spacy|pyarrow|pandas|h5py|zarr"
    r"|lmdb|msgpack|orjson|tiktoken|sentencepiece)/|/json/|/csv\.py|/(gzip|bz2|lzma|zipfile|tarfile)\."
)
_PREPARER_FILES = re.compile(
    r"/torchvision/(transforms|io|datasets)/|/scipy/(ndimage|signal)/|/torch/utils/data/"
    r"|/transformers/(image_|video_|processing_|feature_extraction|tokenization_|audio_|data/)"
    r"|/transformers/models/\w+/(image_processing|processing|video_processing|feature_extraction"
    r"|tokenization)|/data/collat"
)
_PREPARE_NAMES = re.compile(
    r"(^|[._])(collate|collator|preprocess|pre_process|decode|load_image|load_sample|augment|tokenize"
    r"|transform|process_image|prepare_inputs|encode_text|patchify|featuri[sz]e|batchify|parse"
    r"|(get|next|make|build|load|sample|read|prepare|create|form|draw|encode|fetch|pad|pack)_"
    r"((mini|next|train|training|micro)_?)?(batch|examples?|samples?|records?|inputs|rows|sequences)"
    r"|fetch|normali[sz]e_image|read_image|resize)(e?s)?(_\w+)?$|__getitem__$|_collate(_fn)?$|_images?$"
)
_FETCHERS = re.compile(
    r"/(requests|urllib3?|httpx|httpcore|aiohttp|boto3|botocore|s3fs|gcsfs|fsspec|smart_open|paramiko"
    r"|huggingface_hub|minio|redis|pymongo|psycopg2?|pymysql|sqlalchemy)/|/(socket|ssl|ftplib)\.py$"
    r"|/http/client\.py$|/google/cloud/"
)
_METERS = re.compile(
    r"/(sklearn/metrics|torchmetrics|torcheval|evaluate|seqeval|sacrebleu|rouge_score|rouge|jiwer"
    r"|bert_score|pycocotools|lpips|nltk/translate)/"
)
_METRIC_NAMES = re.compile(
    r"(^|[._])(accuracy|acc|precision|recall|f1|auc|auroc|iou|io_u|miou|bleu|rouge|meteor|cider|wer"
    r"|cer|psnr|ssim|fid|mrr|ndcg|hits?|top_?k|confusion|kappa|perplexity|metrics?|score[rs]?"
    r"|meters?)(\d*)($|[._])"
)
"""In names with words apart: ``AveragePrecision.compute`` is ``average_precision.compute``."""
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NO_METRIC = re.compile(r"loss|criterion|reward|attention|attn|match")
_AVERAGES = re.compile(
    r"(^|[._])(update_|apply_)?(ema|swa|polyak)($|[._])|EMA\w*\.|Ema\w*\.|MovingAverage\w*\.|/swa_utils"
    r"|(^|[._])(update_|moving_)?[Aa]veraged?(_(weights|model|params|parameters))?($|\.)"
)
_TORCH = re.compile(
    r"/torch/(nn|autograd|optim|_ops|_tensor|functional|amp|utils/checkpoint|cuda|_compile"
    r"|_functorch|_dynamo|_inductor|distributed/fsdp|_refs|_prims)|/peft/|/liger_kernel/|/flash_attn"
    r"|/accelerate/|/deepspeed/|/transformers/(models|modeling_|integrations|activations|masking)"
)
_QUEUES = re.compile(
    r"/multiprocessing/(queues|connection|pool)\.py|/queue\.py|/concurrent/futures/"
)
_TRACERS = re.compile(
    r"/(traceback|linecache|bdb|pdb|trace|cProfile|profile|tracemalloc)\.py$|/coverage/"
    r"|/torch/(profiler/\w+|autograd/profiler)\.py$"
)
_COLLECTIVES = re.compile(
    r"/torch/distributed/(distributed_c10d|_functional_collectives|utils)\.py"
)

_MODULE_CALL = ("_call_impl", "_wrapped_call_impl")

# What the user's own line says, where its callee is written in C and leaves no frame.
_LINES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    (SLEEP, re.compile(r"\bsleep\(")),
    (SAVE, re.compile(r"\b(torch\.save|save_file|save_pretrained|np\.savez?|pickle\.dump)\(")),
    (LOG, re.compile(
        r"\bopen\(([^)]*,)?\s*(mode=)?['\"][awx][bt+]*['\"]|\.(write|writelines|flush|savefig|add_scalar|add_histogram|log_metrics?|tofile)\(|\bfsync\("
        r"|\bjson\.dumps?\(|\bprint\(|\b(np|numpy|torch)\.hist|\blogg(er|ing)\.|\.histogram\("
    )),
    (PREPARE, re.compile(
        r"\bImage\.(open|fromarray)|\bimread\(|\bimdecode\(|\.resize\(|\.convert\(|frombuffer\("
        r"|\bcv2\.|\btokenizer\(|\bprocessor\(|\bdecode_|\bopen\(|\bjson\.loads?\(|\.readlines?\("
        r"|\bnp\.(load|memmap|fromfile)\(|\bpickle\.loads?\(|\bpd\.read_|\bh5py\."
    )),
    (COMPUTE, re.compile(
        r"\btorch\.|\bF\.|\bnn\.|\.backward\(|\bmodel\(|\bloss\b|\.matmul\(|\.step\(|\.zero_grad\("
        r"| @ |\.grad\b|\.softmax\(|\.view\(|\.transpose\("
    )),
)  # fmt: skip


@cache
def kind_of(stack: Stack) -> str:
    """One of the names above."""
    frames = stack.frames
    if any(_COMPILERS.search(f.file) for f in frames):
        return COMPILE
    if _recomputes(frames):
        return RECOMPUTE
    inner = _inside_module(frames)
    for kind, test in _ORDER:
        if any(test(f) for f in inner):
            return kind
    if len(inner) < len(frames) or any(_TORCH.search(f.file) for f in frames):
        return COMPUTE
    kind = _by_line(frames)
    counts = kind == PYTHON or (kind == COMPUTE and _in_numpy(frames))
    return METRIC if counts and any(map(_measures, frames)) else kind


def _inside_module(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Frames from the leaf to the outermost nn.Module call that the judgement by name may see.

    Inside a forward pass only what lies *in* the modules is looked at: that a training function
    is called ``fit_and_evaluate`` says nothing about its forward passes.  Evaluation is the
    exception, since it consists of forward passes: see :func:`evaluates`.
    """
    calls = [i for i, f in enumerate(frames) if f.function.endswith(_MODULE_CALL)]
    return frames[: calls[-1]] if calls else frames


def _recomputes(frames: Sequence[Frame]) -> bool:
    """Activation checkpointing runs a forward again under backward."""
    checkpoint = [i for i, f in enumerate(frames) if f.file.endswith("/torch/utils/checkpoint.py")]
    backward = [i for i, f in enumerate(frames) if f.file.endswith("/torch/autograd/graph.py")]
    return bool(checkpoint) and bool(backward) and checkpoint[0] < backward[-1]


def evaluates(stack: Stack) -> bool:
    """A frame of the program is named as an evaluation."""
    return any(_EVALUATORS.search(f.function) and "/torch/" not in f.file for f in stack.frames)


def is_own(frame: Frame) -> bool:
    """A frame of the user's own code: only there do function names mean what they say."""
    return frame.line > 0 and not re.search(r"/(site|dist)-packages/|/lib/python3", frame.file)


def _library(frame: Frame, names: re.Pattern[str]) -> bool:
    """A frame of one of these libraries; a program that lies in a folder of that name is none."""
    return bool(names.search(frame.file)) and not is_own(frame)


def _in_numpy(frames: Sequence[Frame]) -> bool:
    """A line like ``np.argsort(-a @ b.T)`` reads as torch's arithmetic, too."""
    return any("/numpy/" in f.file for f in frames[:2]) or "np." in frames[0].text


def _measures(frame: Frame) -> bool:
    """By the name of the user's own function or class: only where neither a module nor torch is
    above it, since a differentiable score is a loss."""
    name = _WORDS.sub("_", frame.function).lower()
    return is_own(frame) and bool(_METRIC_NAMES.search(name)) and not _NO_METRIC.search(name)


def _copies(frame: Frame) -> bool:
    if frame.file.endswith("/copy.py"):
        return frame.function.lstrip("_").startswith("deepcopy")
    return bool("/swa_utils" in frame.file or (is_own(frame) and _AVERAGES.search(frame.function)))


_ORDER: Final[tuple[tuple[str, Callable[[Frame], bool]], ...]] = (
    (COMM, lambda f: bool(_COLLECTIVES.search(f.file))),
    (TRACE, lambda f: bool(
        _TRACERS.search(f.file) and not f.function.startswith("record_function"))),
    (SAVE, lambda f: bool(_SAVERS.search(f.file) or _SAVE_NAMES.search(f.function))),
    (LOG, lambda f: bool(
        _library(f, _LOGGERS) or _WRITERS.search(f.function)
        or (is_own(f) and _LOG_NAMES.search(f.function)))),
    (METRIC, lambda f: _library(f, _METERS)),
    (PREPARE, lambda f: bool(
        _library(f, _PREPARERS) or _PREPARER_FILES.search(f.file)
        or (is_own(f) and _PREPARE_NAMES.search(f.function)))),
    (FETCH, lambda f: _library(f, _FETCHERS)),
    (COPY, _copies),
    (QUEUE, lambda f: bool(_QUEUES.search(f.file))),
)  # fmt: skip


def _by_line(frames: Sequence[Frame]) -> str:
    """By the text of the innermost line of the user's, or of a library where there is none."""
    lines = [f for f in frames if f.text]
    text = next((f.text for f in lines if is_own(f)), lines[0].text if lines else "")
    return next((kind for kind, pattern in _LINES if pattern.search(text)), PYTHON)


def site(stack: Stack) -> Frame | None:
    """The innermost line of the user's own code."""
    return next((f for f in stack.frames if is_own(f)), None)


def function_of(stack: Stack) -> str:
    """The innermost function that says what is being done, with its file."""
    for frame in stack.frames:
        if not re.search(r"/(selectors|threading|socket|fromnumeric)\.py$", frame.file):
            return f"{frame.function} ({short(frame.file)})"
    return "?"


def short(path: str) -> str:
    """``/x/site-packages/PIL/Image.py`` → ``PIL/Image.py``; otherwise the last two parts."""
    for mark in (r"/(?:site|dist)-packages/", r"/lib/python3\.\d+/"):
        inside = re.split(mark, path)
        if len(inside) > 1:
            return inside[-1]
    return "/".join(path.rsplit("/", 2)[-2:])
