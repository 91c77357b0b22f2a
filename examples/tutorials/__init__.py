"""Walkthrough, explorer, exercises and recurrent comparison, and what the small training examples share."""
