"""Plant a fault, read the trace, hear its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brim.diagnose.trace import TraceContext, diagnose_traces
from brim.record.findings import Diagnosis, check
from brim.record.kineto import Trace

GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
SGEMM = "volta_sgemm_128x64_nn"
AMPERE_SGEMM = "ampere_sgemm_128x64_nn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, x>"
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float>"
VOL2COL = "void at::native::vol2col_kernel<c10::BFloat16>(long, c10::BFloat16 const*)"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

Read = Callable[..., Trace]


def layers(tape: Any, count: int = 20, us: float = 100.0) -> None:
    for _ in range(count):
        tape.run("aten::mm", GEMM, us)


def causes(diagnosis: Diagnosis) -> list[str]:
    check(diagnosis)
    return [finding.cause for finding in diagnosis.findings]


def share(diagnosis: Diagnosis, cause: str) -> float:
    return sum(entry.share for entry in diagnosis.account if entry.cause == cause)


def test_a_host_that_is_ahead_is_healthy(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            layers(tape)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis) == []
    assert diagnosis.verdict.startswith("Healthy")
    assert share(diagnosis, "compute") > 0.97


def test_a_single_process_loader_of_1500_us_in_steps_of_3500_is_43_percent(
    tape: Any, read: Read
) -> None:
    for number in range(6):
        with tape.step(number):
            with tape.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                tape.pause(1500)
            layers(tape)
            tape.sync("cudaDeviceSynchronize")
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis)[0] == "input.main-process"
    assert share(diagnosis, "input.main-process") == pytest.approx(0.43, abs=0.02)


def test_waiting_for_loader_workers_is_named_with_low_confidence(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            with tape.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                tape.pause(4000)
            layers(tape)
            tape.item()
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis)[0] == "input.workers"
    assert diagnosis.findings[0].confidence == "low"
    assert "workers are not in the trace" in " ".join(diagnosis.findings[0].evidence)


def test_a_measured_run_says_what_the_workers_do(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            with tape.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                tape.pause(4000)
            layers(tape)
    diagnosis = diagnose_traces([read(tape)], context=TraceContext(input_cause="input.decode"))
    assert causes(diagnosis)[0] == "input.decode"
    assert diagnosis.findings[0].confidence == "high"


def test_preprocessing_seen_only_in_python_frames_is_input_with_its_line(
    tape: Any, read: Read
) -> None:
    with tape.frame("train.py(12): <module>"):
        for number in range(6):
            with tape.step(number):
                with tape.frame("train.py(40): next_batch"):  # noqa: SIM117
                    with tape.frame("transformers/image_processing_utils.py(40): __call__"):
                        tape.pause(3000)
                layers(tape)
                tape.sync()
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis)[0] == "input.main-process"
    where = diagnosis.findings[0].where
    assert where is not None
    assert (where.file, where.line, where.function) == ("train.py", 40, "next_batch")


def test_many_small_kernels_are_launch_bound(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            for _ in range(100):
                tape.run("aten::add", ADD, us=3.0, before=8.0)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis)[0] == "host.launch"
    assert share(diagnosis, "host.launch") > 0.6


def test_a_sync_that_drains_the_queue_is_blamed_and_not_the_launches_after_it(
    tape: Any, read: Read
) -> None:
    for number in range(6):
        with tape.step(number), tape.frame("train.py(7): step"):
            for _ in range(4):
                layers(tape, 10)
                with tape.frame("train.py(9): log_loss"):
                    tape.item()
                tape.pause(250)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis)[0] == "host.sync"
    assert share(diagnosis, "host.launch") < 0.02
    where = diagnosis.findings[0].where
    assert where is not None and where.function == "log_loss"


def test_reads_of_finished_values_on_a_full_queue_are_innocent(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            for _ in range(10):
                layers(tape, 4)
                # an event of long ago: the call returns at once, the queue stays full
                tape.call("cudaEventSynchronize", 20)
    assert causes(diagnose_traces([read(tape)])) == []


def test_blocking_copies_from_pageable_memory(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            with tape.op("aten::copy_"):
                tape.copy("Memcpy HtoD (Pageable -> Device)", 600, 6_000_000, blocks=True)
            layers(tape, 10)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis)[0] == "transfer.pageable"
    assert "6 of 6 copies" in " ".join(diagnosis.findings[0].evidence)


def test_compilation_in_the_steady_state(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            with tape.note("_compile.compile_inner (dynamo_timed)"):
                tape.pause(2500)
            layers(tape)
            tape.sync()
    assert causes(diagnose_traces([read(tape)]))[0] == "host.recompile"


def test_a_checkpoint_that_stops_training(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            layers(tape)
            if number % 2:
                with tape.frame("torch/serialization.py(900): save"):
                    tape.pause(6000)
    assert causes(diagnose_traces([read(tape)]))[0] == "host.periodic"


def test_emptying_the_cache_in_the_loop(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            layers(tape)
            tape.sync("cudaDeviceSynchronize")
            for _ in range(3):
                tape.call("cudaFree", 400)
            for _ in range(3):
                with tape.op("aten::empty"):
                    tape.call("cudaMalloc", 300)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis)[0] == "memory.cache-flush"
    assert "18 device allocations and 18 frees" in " ".join(diagnosis.findings[0].evidence)


def test_an_allocator_that_gives_back_inside_an_operation_is_short_of_memory(
    tape: Any, read: Read
) -> None:
    for number in range(6):
        with tape.step(number):
            layers(tape)
            tape.sync("cudaDeviceSynchronize")
            with tape.op("aten::empty"):
                tape.call("cudaFree", 900)
                tape.call("cudaMalloc", 900)
    assert causes(diagnose_traces([read(tape)]))[0] == "memory.pressure"


def test_a_cache_emptied_inside_convolutions_is_a_kernel_search(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            layers(tape)
            tape.sync("cudaDeviceSynchronize")
            with tape.op("aten::cudnn_convolution"):
                tape.call("cudaFree", 900)
                tape.call("cudaMalloc", 900)
    assert causes(diagnose_traces([read(tape)]))[0] == "compute.shape-search"


def test_allocations_of_the_start_are_not_sold_as_a_fault(tape: Any, read: Read) -> None:
    for _ in range(40):
        with tape.op("aten::empty"):
            tape.call("cudaMalloc", 3000)
        tape.run("aten::mm", GEMM, 50)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis) == []
    assert diagnosis.verdict.startswith("A start-up capture")
    assert any("no steady state" in note for note in diagnosis.notes)


def test_five_kernels_are_too_few_to_judge(tape: Any, read: Read) -> None:
    for _ in range(5):
        tape.run("aten::mm", GEMM, 50)
        tape.pause(900)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis) == []
    assert diagnosis.verdict.startswith("Too little to judge: 5 device events")


def test_fp32_matrix_products_on_a_device_with_tensor_cores(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            for _ in range(20):
                tape.run("aten::mm", AMPERE_SGEMM, 100)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis) == ["compute.precision"]
    assert 0.4 < share(diagnosis, "compute.precision") < 0.7


def test_fp32_on_volta_is_no_fault_of_a_switch(new_tape: Callable[..., Any], read: Read) -> None:
    volta = {
        "id": 0, "name": "Tesla V100-SXM2-32GB", "totalGlobalMem": 34089730048,
        "computeMajor": 7, "computeMinor": 0, "numSms": 80,
    }  # fmt: skip
    tape = new_tape(gpu=volta)
    for number in range(6):
        with tape.step(number):
            for _ in range(20):
                tape.run("aten::mm", SGEMM, 100)
    assert causes(diagnose_traces([read(tape)])) == []


def test_small_fp32_products_far_from_their_peak_count_little(tape: Any, read: Read) -> None:
    dims = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    for number in range(6):
        with tape.step(number):
            for _ in range(20):
                tape.run("aten::mm", AMPERE_SGEMM, 100, **dims)
    assert causes(diagnose_traces([read(tape)])) == []


def test_attention_scores_in_memory(tape: Any, read: Read) -> None:
    dims = {"Input Dims": [[8, 16, 1024, 1024], [], []]}
    for number in range(6):
        with tape.step(number):
            for _ in range(10):
                tape.run("aten::bmm", GEMM, 60)
                tape.run("aten::mul", ADD, 50)
                tape.run("aten::_softmax", SOFTMAX, 80, **dims)
                tape.run("aten::bmm", GEMM, 60)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis)[0] == "compute.attention"
    assert share(diagnosis, "compute.attention") == pytest.approx(130 / 250, abs=0.02)


def test_a_softmax_over_classes_is_no_attention(tape: Any, read: Read) -> None:
    dims = {"Input Dims": [[512, 1000], [], []]}
    for number in range(6):
        with tape.step(number):
            for _ in range(10):
                tape.run("aten::mm", GEMM, 60)
                tape.run("aten::_softmax", SOFTMAX, 80, **dims)
                tape.run("aten::mm", GEMM, 60)
    assert causes(diagnose_traces([read(tape)])) == []


def test_chains_of_element_wise_kernels(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            for _ in range(5):
                tape.run("aten::mm", GEMM, 100)
                for _ in range(6):
                    tape.run("aten::add", ADD, 50)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis) == ["compute.unfused"]
    # six of two inputs each: (2·6 - 2) / (3·6) of 300 of 400 µs
    assert share(diagnosis, "compute.unfused") == pytest.approx(10 / 18 * 0.75, abs=0.02)


def test_fused_triton_kernels_have_nothing_to_fuse(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            for _ in range(20):
                tape.run("CompiledFunction", "triton_poi_fused_add_mul_silu_0", 60)
    assert causes(diagnose_traces([read(tape)])) == []


def test_a_generic_convolution_kernel_is_slow(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            with tape.op("aten::slow_conv3d_forward"):
                for _ in range(4):
                    tape.kernel(VOL2COL, 400)
            layers(tape)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis)[0] == "compute.slow-kernel"


def recomputing(tape: Any) -> None:
    for number in range(6):
        with tape.step(number):
            layers(tape, 10)
            with tape.on(101):
                node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
                with tape.op(node, **{"Sequence number": 5, "Fwd thread id": 1}):
                    for _ in range(10):
                        tape.run("aten::linear", GEMM, 100,
                                 **{"Sequence number": 9, "Fwd thread id": 0})  # fmt: skip
                    layers(tape, 20)


def test_a_second_forward_in_the_backward_is_a_fault_only_where_memory_was_free(
    tape: Any, read: Read
) -> None:
    recomputing(tape)
    trace = read(tape)
    free = diagnose_traces([trace], context=TraceContext(memory_free=0.6))
    full = diagnose_traces([trace], context=TraceContext(memory_free=0.05))
    unknown = diagnose_traces([trace])
    assert causes(free) == ["compute.recompute"]
    assert share(free, "compute.recompute") == pytest.approx(0.25, abs=0.02)
    assert causes(full) == causes(unknown) == []
    assert any("memory was free is not in the trace" in note for note in unknown.notes)


def test_reserved_memory_in_the_trace_tells_that_there_was_room(tape: Any, read: Read) -> None:
    recomputing(tape)
    tape.events.append(
        {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": tape.start + 1,
         "args": {"Total Reserved": 30 << 30, "Device Type": 1, "Device Id": 0}}
    )  # fmt: skip
    assert causes(diagnose_traces([read(tape)])) == ["compute.recompute"]


def test_padding_is_known_only_from_outside(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            layers(tape)
    trace = read(tape)
    assert causes(diagnose_traces([trace])) == []
    diagnosis = diagnose_traces([trace], context=TraceContext(padding=0.35))
    assert causes(diagnosis) == ["compute.padding"]
    assert share(diagnosis, "compute.padding") == pytest.approx(0.35, abs=0.01)


def test_collectives_that_nothing_hides(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            layers(tape, 10)
            tape.run("record_param_comms", NCCL, 500)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis) == ["comm.exposed"]
    assert share(diagnosis, "comm.exposed") == pytest.approx(1 / 3, abs=0.02)


def test_hundreds_of_tiny_collectives_are_too_many(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            for _ in range(100):
                tape.run("aten::mm", GEMM, 60)
                tape.run("record_param_comms", NCCL, 20)
    assert causes(diagnose_traces([read(tape)])) == ["comm.too-many"]


def test_a_wait_is_charged_with_the_python_that_it_keeps_from_running_beside_the_device(
    tape: Any, read: Read
) -> None:
    for number in range(6):
        with tape.step(number):
            for _ in range(20):
                tape.run("aten::mm", GEMM, 500.0)
            tape.sync()
            tape.pause(4000.0)  # no event at all: the next batch is prepared
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis) == ["host.sync"]
    assert share(diagnosis, "host.sync") == pytest.approx(4 / 14, abs=0.06)


def test_the_same_python_without_a_wait_is_not_told_apart(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            tape.run("aten::mm", GEMM, 500.0)
            tape.pause(8000.0)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis) == []
    assert share(diagnosis, "unknown") > 0.5


def test_the_profilers_own_cost_is_taken_out_of_the_launches(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            for _ in range(100):
                tape.run("aten::mm", GEMM, us=15.0, before=16.0)
    trace = read(tape)
    plain = diagnose_traces([trace])
    step_s = tape.length * 1e-6 / 6
    known = diagnose_traces([trace], context=TraceContext(step_s=step_s * 0.95))
    profiled = share(plain, "host.launch")
    assert share(known, "host.launch") == pytest.approx((profiled - 0.05) / 0.95, abs=2e-3)
    assert known.metrics["step_s"] == pytest.approx(step_s * 0.95)


def test_useful_is_the_model_at_its_peak_where_both_are_known(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            layers(tape)
    trace = read(tape)
    step_s = tape.length * 1e-6 / 6
    known = TraceContext(step_s=step_s, model_flops_per_step=0.4 * 989e12 * step_s,
                         peak_flops=989e12)  # fmt: skip
    diagnosis = diagnose_traces([trace], context=known)
    parts = {(e.part, e.cause): e.share for e in diagnosis.account}
    assert parts["useful", "compute"] == pytest.approx(0.4)
    assert parts["busy-lost", "compute"] == pytest.approx(0.6, abs=0.02)
    assert diagnosis.metrics["mfu"] == pytest.approx(0.4)
    assert causes(diagnosis) == []


def test_a_first_batch_that_is_slow_once_is_no_slow_loader(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            with tape.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                tape.pause(9000 if number == 0 else 20)
            layers(tape)
    assert causes(diagnose_traces([read(tape)])) == ["input.startup"]


def test_gaps_inside_a_cuda_graph_are_not_the_hosts(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            for _ in range(5):
                tape.call("cudaGraphLaunch", 10)
                begin = max(tape.now, *tape.streams.values(), 0.0)
                for kernel in range(40):
                    tape._device("kernel", GEMM, 6.0, 7, begin + 8.0 * kernel)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis) == []
    assert share(diagnosis, "host.launch") < 0.03
    assert share(diagnosis, "unknown") == pytest.approx(0.25, abs=0.03)
