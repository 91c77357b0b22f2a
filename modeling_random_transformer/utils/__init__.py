"""Small helpers that several parts of the package share."""
