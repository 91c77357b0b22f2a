"""The tasks of transformers v4 that v5 has removed: translation, summarization and text2text-generation."""

from .v4_tasks import (
    SummarizationPipeline,
    Text2TextGenerationPipeline,
    TranslationPipeline,
    register_v4_tasks,
)

__all__ = [
    "SummarizationPipeline",
    "Text2TextGenerationPipeline",
    "TranslationPipeline",
    "register_v4_tasks",
]
