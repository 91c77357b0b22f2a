"""Walkthrough, explorer, exercises, recurrent comparison, and shared code of the small training examples."""
