"""Parallel text: sources, validation, tokenization, batches by tokens, streaming."""
