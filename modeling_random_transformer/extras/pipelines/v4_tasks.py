"""The tasks `"translation"`, `"summarization"` and `"text2text-generation"` of transformers v4, which v5 has removed.

`register_v4_tasks` adds them: `pipeline("seq2seq")` with the arguments, defaults and outputs of v4.57.
"""

import re
from dataclasses import dataclass
from os import PathLike
from typing import Any

from transformers import AutoModelForSeq2SeqLM, GenerationConfig, pipelines
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import PipelineRegistry

from ...inputs_random_transformer import tokenizer_languages
from ...pipeline_random_transformer import LENGTH_LIMITS, CallOptions, Seq2SeqPipeline

# Transformers v4's defaults of options that the model's generation_config does not set.
DEFAULTS = {"num_beams": 4, "max_new_tokens": 256}
UNLIMITED = int(1e30)  # the model_max_length of a tokenizer without a limit
TRANSLATION_TASK = re.compile(r"translation_([^_]+)_to_([^_]+)")


@dataclass(frozen=True)
class Text2TextOptions(CallOptions):
    """The options of a call of `Text2TextGenerationPipeline`, which explains them."""

    return_tensors: bool = False


class Text2TextGenerationPipeline(Seq2SeqPipeline):
    """`pipeline("text2text-generation")` as in transformers v4.

    A text returns a list with a dictionary for each of `num_return_sequences` outputs. A list of texts returns a list
    of dictionaries, or of lists of dictionaries if there are several outputs per text. Another iterable returns an
    iterator over lists.

    Differences from `pipeline("seq2seq")`: 4 beams and at most 256 new tokens, unless the model's `generation_config`
    has other values; `task_specific_params` of the model's configuration are applied; texts are only truncated with
    `truncation`, even if they are longer than `tokenizer.model_max_length`. Texts that are longer than a table of
    learned positions raise a `ValueError`.

    Args:
        return_tensors: return token ids, `[target_len]`, as `"generated_token_ids"` instead of the text.
        truncation: truncate texts to `tokenizer.model_max_length`.
        **options: the other arguments of `Seq2SeqPipeline`.
    """

    return_name = "generated"
    defaults = Text2TextOptions()

    def __init__(self, model: Any, *args: Any, task: str = "", **options: Any):
        defaults = {
            "return_key": f"{self.return_name}_text",
            "clean_up_tokenization_spaces": False,
            "truncation": "max_source_tokens" in options,
        }
        super().__init__(model, *args, task=task, **{**defaults, **task_options(model, task, options)})

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Generate from one text, a list of texts or a stream; see the class."""
        answers = super().__call__(inputs, **options)
        if isinstance(inputs, list | tuple) and all(len(answer) == 1 for answer in answers):
            return [answer[0] for answer in answers]
        return answers

    def call_options(self, **arguments: Any) -> CallOptions:
        """The options of a call with these arguments."""
        truncation = arguments.get("truncation", "max_source_tokens" in arguments or None)
        if truncation is not None:  # may be a TruncationStrategy or its value
            truncation = getattr(truncation, "value", truncation) not in (False, "do_not_truncate")
            limit = self.tokenizer.model_max_length if truncation else UNLIMITED
            arguments = {"max_source_tokens": limit, **arguments, "truncation": truncation}
        if arguments.get("return_tensors"):  # a text that is returned unchanged has no token ids
            arguments = {"keep_without_letters": False, **arguments}
        return super().call_options(**arguments)

    def postprocess(self, model_outputs: dict[str, Any], options: Text2TextOptions) -> list[Any]:  # type: ignore[override]
        """Convert the outputs of `_forward` to the list of answers of each text."""
        if options.return_tensors:
            name = f"{self.return_name}_token_ids"
            return [[{name: ids} for ids in rows] for rows in model_outputs["sequences"]]
        return super().postprocess(model_outputs, options)

    def answer(self, candidates: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The answer to a text with these candidates."""
        return candidates

    def save_pretrained(self, save_directory: str | PathLike, **kwargs: Any) -> None:
        """Save the model and the tokenizer, without code of this class: `register_v4_tasks` adds the tasks."""
        self.model.save_pretrained(save_directory, **kwargs)
        self.tokenizer.save_pretrained(save_directory, **kwargs)


class SummarizationPipeline(Text2TextGenerationPipeline):
    """`pipeline("summarization")` as in transformers v4: summaries are in `"summary_text"`."""

    return_name = "summary"


class TranslationPipeline(Text2TextGenerationPipeline):
    """`pipeline("translation")` and `pipeline("translation_en_to_de")` as in transformers v4.

    Translations are in `"translation_text"`. The name of the task gives the languages, unless `src_lang` and `tgt_lang`
    do. A model whose tokenizer has no language tags, such as Marian and T5, ignores them.
    """

    return_name = "translation"

    def __init__(self, model: Any, *args: Any, task: str = "translation", **options: Any):
        if languages := TRANSLATION_TASK.fullmatch(task):
            options = {"src_lang": languages[1], "tgt_lang": languages[2], **options}
        super().__init__(model, *args, task=task, **options)

    def call_options(self, **arguments: Any) -> CallOptions:
        """The options of a call with these arguments."""
        if not tokenizer_languages(self.tokenizer):
            arguments = {name: value for name, value in arguments.items() if name not in ("src_lang", "tgt_lang")}
        return super().call_options(**arguments)


TASKS = {
    "text2text-generation": Text2TextGenerationPipeline,
    "summarization": SummarizationPipeline,
    "translation": TranslationPipeline,
}


def register_v4_tasks() -> None:
    """Add the tasks that transformers v5 has removed: translation, summarization and text2text-generation.

    They change `pipeline()` for all models of this process. Tasks that the installed transformers has are not replaced.
    """
    for task in TASKS.keys() - set(PIPELINE_REGISTRY.get_supported_tasks()):
        # `register_pipeline` would save the class as the custom code of each model.
        PIPELINE_REGISTRY.supported_tasks[task] = {"impl": TASKS[task], "pt": (AutoModelForSeq2SeqLM,), "type": "text"}
        getattr(pipelines, "REMOVED_TASKS", {}).pop(task, None)  # would raise an error
    if PIPELINE_REGISTRY.supported_tasks["translation"]["impl"] is TranslationPipeline:
        PIPELINE_REGISTRY.check_task = check_task


def check_task(task: str) -> tuple[str, dict[str, Any], Any]:
    """`PIPELINE_REGISTRY.check_task` that also accepts `"translation_en_to_de"`."""
    if TRANSLATION_TASK.fullmatch(task):
        return "translation", PIPELINE_REGISTRY.supported_tasks["translation"], None
    return PipelineRegistry.check_task(PIPELINE_REGISTRY, task)


def task_options(model: Any, task: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of the constructor, over `task_specific_params` of the model's configuration, over `DEFAULTS`.

    The highest of them, or the model's `generation_config`, that limits the length of the output is its only limit.
    """
    if options.get("generation_config") is not None:  # replaces all options
        return options
    unset = GenerationConfig()
    saved = {}
    for name in (*DEFAULTS, *LENGTH_LIMITS):
        value = getattr(model.generation_config, name)
        if value not in (None, getattr(unset, name)):
            saved[name] = value
    task_specific = getattr(model.config, "task_specific_params", None) or {}
    merged: dict[str, Any] = DEFAULTS
    for layer in (saved, task_specific.get(task, {}), options):
        if layer.keys() & set(LENGTH_LIMITS):
            merged = {name: value for name, value in merged.items() if name not in LENGTH_LIMITS}
        merged = merged | layer
    return merged
