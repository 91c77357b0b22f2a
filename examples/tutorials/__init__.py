"""Modules behind the walkthrough, the exercises, the explorer and the recurrent comparison."""
