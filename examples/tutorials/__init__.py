"""Walkthrough, explorer, exercises, figures and comparisons, and shared code of the small training examples."""
