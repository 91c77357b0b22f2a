"""The length penalty and the patience of a trained model, chosen on the validation sets."""

from .search_choice import choose_search

__all__ = ["choose_search"]
