"""The experiments that answer the questions of the source documents, one module each."""
