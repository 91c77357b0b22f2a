"""Training methods: one file each, with a loss, a callback, an optimizer or a way to segment text."""
