"""What a stack of the training thread stands for, and what it must not be taken for."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.live.records import MAIN, SITE, TORCH, TRAIN, stack

from brim.diagnose.live.stacks import evaluates, function_of, kind_of, short, site

CALL = (f"{TORCH}/nn/modules/module.py", "Module._call_impl")
LINEAR = (f"{TORCH}/nn/modules/linear.py", "Linear.forward")
BACKWARD = (f"{TORCH}/autograd/graph.py", "_engine_run_backward")
CHECKPOINT = (f"{TORCH}/utils/checkpoint.py", "CheckpointFunction.backward")


LIB = "/usr/lib/python3.12"


def _own(function: str, text: str = "") -> tuple[Any, ...]:
    return (TRAIN, function, 30, text)


@pytest.mark.parametrize(
    ("kind", "frames"),
    [
        ("compute", [LINEAR, CALL, _own("train")]),
        ("compute", [BACKWARD, _own("train", "loss.backward()")]),
        ("compute", [(f"{TORCH}/optim/adamw.py", "adamw"), _own("train", "optimizer.step()")]),
        ("compute", [_own("train", "y = x @ w")]),
        ("recompute", [LINEAR, CALL, CHECKPOINT, BACKWARD, _own("train")]),
        ("compile", [(f"{TORCH}/_dynamo/convert_frame.py", "_compile"), CALL, _own("train")]),
        ("compile", [("/x/triton/compiler/compiler.py", "compile"), LINEAR, CALL]),
        ("save", [(f"{SITE}/safetensors/torch.py", "save_file"), _own("train")]),
        ("save", [(f"{SITE}/transformers/trainer.py", "Trainer._save_checkpoint"), MAIN]),
        ("save", [_own("keep", "torch.save(state, path)")]),
        ("log", [(f"{SITE}/wandb/sdk/wandb_run.py", "Run.log"), _own("train")]),
        ("log", [_own("write_histograms"), MAIN]),
        ("log", [_own("train", "print(f'loss {loss}')")]),
        ("prepare", [(f"{SITE}/PIL/Image.py", "Image.resize"), _own("train")]),
        ("prepare", [(f"{SITE}/transformers/models/x/image_processing_x.py", "_preprocess")]),
        ("prepare", [_own("collate_fn"), MAIN]),
        ("queue", [("/usr/lib/python3.12/threading.py", "wait"),
                   ("/usr/lib/python3.12/queue.py", "Queue.get"), _own("train")]),
        ("trace", [("/usr/lib/python3.12/linecache.py", "getline"), LINEAR, CALL]),
        ("trace", [(f"{TORCH}/autograd/profiler.py", "profile.export_chrome_trace"), MAIN]),
        ("compute", [(f"{TORCH}/autograd/profiler.py", "record_function.__exit__"),
                     (f"{TORCH}/optim/optimizer.py", "wrapper"), _own("train")]),
        ("comm", [(f"{TORCH}/distributed/distributed_c10d.py", "all_reduce"), _own("train")]),
        ("log", [(f"{SITE}/pandas/core/generic.py", "NDFrame.to_csv"), MAIN]),
        ("log", [(f"{LIB}/json/encoder.py", "JSONEncoder.encode"), (f"{LIB}/json/__init__.py",
                 "dumps"), MAIN]),
        ("log", [_own("train", "with open('loss.txt', 'a') as f:")]),
        ("log", [(f"{LIB}/pathlib.py", "Path.open", 1044, "return io.open(self, mode)"),
                 _own("keep", "with path.open('wb') as file:")]),
        ("prepare", [(f"{LIB}/pathlib.py", "Path.open", 1044, "return io.open(self, mode)"),
                     _own("keep", "with path.open('w.txt') as file:")]),
        ("prepare", [(f"{LIB}/json/decoder.py", "JSONDecoder.raw_decode"),
                     (f"{LIB}/json/__init__.py", "loads"), MAIN]),
        ("prepare", [(f"{LIB}/csv.py", "DictReader.__next__"), MAIN]),
        ("prepare", [_own("Pages.get_batch", "rows.append(x)"), MAIN]),
        ("prepare", [_own("next_training_batch"), MAIN]),
        ("prepare", [_own("train", "record = json.loads(line)")]),
        ("fetch", [(f"{LIB}/socket.py", "SocketIO.readinto"), (f"{LIB}/http/client.py",
                   "HTTPResponse.begin"), _own("Service.get")]),
        ("fetch", [(f"{SITE}/botocore/httpsession.py", "send"), _own("train")]),
        ("metric", [(f"{SITE}/sklearn/metrics/_ranking.py", "roc_auc_score"), MAIN]),
        ("metric", [_own("AveragePrecision.compute", "ranks = sorted(rows)"), MAIN]),
        ("metric", [_own("top_k_accuracy", "order = np.argsort(-queries @ targets.T)"), MAIN]),
        ("copy", [(f"{TORCH}/nn/parameter.py", "Parameter.__deepcopy__"),
                  (f"{LIB}/copy.py", "deepcopy"), MAIN]),
        ("copy", [(f"{TORCH}/optim/swa_utils.py", "AveragedModel.update_parameters"), MAIN]),
        ("copy", [_own("ModelEMA.update", "value.mul_(d).add_(new)"), MAIN]),
        ("sleep", [_own("train", "time.sleep(0.1)")]),
        ("python", [_own("train", "total += 1")]),
        ("python", [_own("update_parameters", "total += 1")]),  # no meters
        ("python", [_own("answer", "total += 1")]),  # nor a word error rate
        ("metric", [_own("MeanIoU.update", "total += 1")]),
        ("metric", [_own("F1Score.compute", "total += 1")]),
        ("save", [(f"{SITE}/requests/api.py", "put"),
                  (f"{SITE}/huggingface_hub/hf_api.py", "HfApi.upload_folder"), MAIN]),
        ("python", []),
    ],
)  # fmt: skip
def test_each_kind_is_told_by_its_frames(kind: str, frames: list[tuple[Any, ...]]) -> None:
    assert kind_of(stack("1", *frames)) == kind


@pytest.mark.parametrize(
    "frames",
    [
        # what a training function is called says nothing about its forward passes
        [LINEAR, CALL, _own("train_and_save_checkpoint"), MAIN],
        [LINEAR, CALL, _own("log_and_train"), MAIN],
        [LINEAR, CALL, _own("collate_and_step"), MAIN],
        [LINEAR, CALL, _own("score_and_train"), MAIN],
        # a score that is differentiated is a loss
        [_own("dice_score", "return 1 - (2 * torch.sum(a * b) / torch.sum(a + b))"), MAIN],
        [_own("iou_loss", "y = a @ b"), MAIN],
        # calling what was compiled is no compilation
        [(f"{TORCH}/_dynamo/eval_frame.py", "compile_wrapper"), LINEAR, CALL, _own("train")],
        # checkpointing's own forward pass is the first one
        [LINEAR, CALL, (f"{TORCH}/utils/checkpoint.py", "checkpoint"), CALL, _own("train")],
    ],
    ids=["save", "log", "prepare", "metric", "score", "loss", "compiled", "first-forward"],
)
def test_a_forward_pass_is_computing_whatever_stands_around_it(
    frames: list[tuple[Any, ...]],
) -> None:
    assert kind_of(stack("1", *frames)) == "compute"


@pytest.mark.parametrize("folder", ["datasets", "evaluate", "wandb", "requests", "av"])
def test_a_program_in_a_folder_of_a_librarys_name_is_not_that_library(folder: str) -> None:
    assert kind_of(stack("1", (f"/mnt/{folder}/train.py", "main", 7, "total += 1"))) == "python"


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        ("evaluate", True), ("Trainer.evaluation_loop", True), ("run_eval", True),
        ("validation_step", True), ("val_loop", False), ("retrieval", False), ("train", False),
        ("medieval", False), ("latest", False),
    ],
)  # fmt: skip
def test_an_evaluation_is_told_by_the_name_of_a_function_of_the_program(
    function: str, answer: bool
) -> None:
    assert evaluates(stack("1", LINEAR, CALL, (TRAIN, function, 3))) is answer


def test_a_function_of_torch_is_never_the_programs_evaluation() -> None:
    assert not evaluates(stack("1", (f"{TORCH}/fx/interpreter.py", "evaluate"), CALL, MAIN))


def test_the_place_is_the_innermost_line_of_the_users_own() -> None:
    found = site(stack("1", (f"{SITE}/PIL/Image.py", "open", 9), _own("load"), MAIN))
    assert found is not None
    assert (found.function, found.line) == ("load", 30)
    assert site(stack("1", (f"{SITE}/PIL/Image.py", "open", 9))) is None


def test_waiting_is_named_by_what_waits() -> None:
    waits = stack("1", ("/usr/lib/python3.12/selectors.py", "select"),
                  ("/usr/lib/python3.12/multiprocessing/connection.py", "wait"))  # fmt: skip
    assert function_of(waits) == "wait (multiprocessing/connection.py)"
    assert function_of(stack("1")) == "?"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"{SITE}/PIL/Image.py", "PIL/Image.py"),
        ("/usr/lib/python3.12/queue.py", "queue.py"),
        ("/usr/lib/python3/dist-packages/yaml/x.py", "yaml/x.py"),
        ("/home/me/project/train.py", "project/train.py"),
        ("train.py", "train.py"),
    ],
)
def test_paths_are_shortened_to_what_tells_them_apart(path: str, name: str) -> None:
    assert short(path) == name
