"""Qwen3-VL as a packed model: weights in and out, kernels by capability, FLOPs and memory."""
