"""Translation of documents with markup."""

from .html_translation import translate_html
from .po import translate_po
from .srt import translate_srt
from .xliff import translate_xliff

# Format → function that translates one document.
TRANSLATORS = {"srt": translate_srt, "po": translate_po, "xliff": translate_xliff}

__all__ = ["TRANSLATORS", "translate_html", "translate_po", "translate_srt", "translate_xliff"]
