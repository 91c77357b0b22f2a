"""Translation of documents with mark-up."""

from .html_translation import translate_html

__all__ = ["translate_html"]
