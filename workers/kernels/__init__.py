"""Kernels: the concrete programs that compute logits from weights and tokens."""
