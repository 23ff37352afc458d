"""Runs models on Triton servers instead of in this process."""
