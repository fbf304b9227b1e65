"""Kernel names of five years and three vendors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.diagnose.trace.kernels import (
    Kind,
    classify,
    copy_direction,
    is_pageable,
)

NAMES = [
    ("volta_sgemm_128x64_nn", "matmul", "fp32", "cublas"),
    ("ampere_sgemm_64x64_tn", "matmul", "fp32", "cublas"),
    ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>(x)",
     "matmul", "tf32", "cutlass"),
    ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(x)",
     "matmul", "bf16", "cutlass"),
    ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_nn", "matmul", "fp16", "cublas"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas",
     "matmul", "bf16", "cublas"),
    ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize32x32x8_cublas", "matmul", "tf32", "cublas"),
    ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "matmul", "bf16", "cublas"),
    ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTN", "matmul", "fp16", "cublas"),
    ("nvjet_qqtst_128x128_128x6_1x1_h_bz_TNN", "matmul", "fp8", "cublas"),
    ("Cijk_Ailk_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT64x288x64", "matmul", "bf16", "hipblaslt"),
    ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3", "matmul", "fp4", ""),
    ("volta_scudnn_128x64_relu_interior_nn_v1", "conv", "fp32", "cudnn"),
    ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_x_cudnn",
     "conv", "tf32", "cudnn"),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(x)",
     "conv", "fp32", "cudnn"),
    ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32", "conv", "bf16", "miopen"),
    ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>",
     "attention", "", "flash-attention"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128",
     "attention", "fp16", "flash-attention"),
    ("kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object",
     "attention", "", "flash-attention"),
    ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::x)",
     "attention", "bf16", "flash-attention"),
    ("triton_poi_fused_add_cos_sin_0", "elementwise", "", "triton"),
    ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", "reduce", "", "triton"),
    ("_rms_norm_backward_kernel", "norm", "", "triton"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::neg_kernel_cuda(x)::"
     "{lambda()#2}>", "elementwise", "", "aten"),
    ("void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, x>>",
     "reduce", "bf16", "aten"),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float>",
     "softmax", "bf16", "aten"),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<x>", "optimizer", "",
     "aten"),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(x)",
     "norm", "fp32", "aten"),
    ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(x)",
     "norm", "fp32", "cudnn"),
    ("void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel<x>",
     "embedding", "", "fbgemm"),
    ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int)", "index", "", "fbgemm"),
    ("void at::native::vol2col_kernel<float>(x)", "layout", "fp32", "aten"),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "comm", "", "nccl"),
    ("my_kernel(int*)", "other", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "dtype", "library"), NAMES)
def test_a_kernel_is_known_by_its_name(name: str, kind: str, dtype: str, library: str) -> None:
    kernel = classify(name)
    assert (kernel.kind.label, kernel.dtype, kernel.library) == (kind, dtype, library)


def test_generated_and_flash_kernels_are_fused_and_eager_ones_are_not() -> None:
    assert classify("triton_poi_fused_add_0").fused
    assert classify("_rms_norm_forward_kernel").fused
    assert not classify("void at::native::vectorized_elementwise_kernel<4, x>").fused


def test_communication_is_what_the_name_calls_nccl_or_rccl() -> None:
    assert classify("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)").kind is Kind.COMM
    assert classify("rcclKernel").kind is Kind.COMM


@pytest.mark.parametrize(
    ("name", "direction", "pageable"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "h2d", True),
        ("Memcpy HtoD (Pinned -> Device)", "h2d", False),
        ("Memcpy DtoH (Device -> Pageable)", "d2h", True),
        ("Memcpy DtoD (Device -> Device)", "d2d", False),
        ("Memcpy HtoD (Host -> Device)", "h2d", False),
        ("Memset (Device)", "", False),
    ],
)
def test_a_copy_says_its_direction_and_memory(name: str, direction: str, pageable: bool) -> None:
    assert (copy_direction(name), is_pageable(name)) == (direction, pageable)


@given(st.text(max_size=600))
def test_any_text_is_a_kernel_name(name: str) -> None:
    assert classify(name).kind in Kind
