"""Options of `translate` that change texts before and translations after the model.

translate([paragraphs], model, tokenizer, split_sentences=True)
translate(texts, model, tokenizer, glossary=Glossary.read("terms.tsv"))        # with required target phrases
translate(texts, model, tokenizer, repair=True)
"""

from .glossary import Glossary

__all__ = ["Glossary"]
