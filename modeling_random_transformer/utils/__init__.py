"""Helpers that several parts of the package share."""

DTYPES = ("float32", "bfloat16", "int8")  # of weights in inference
