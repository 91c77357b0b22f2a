"""The tasks `"translation"`, `"summarization"` and `"text2text-generation"` of transformers v4.

transformers v5 has removed them. Here they are `pipeline("seq2seq")` with the arguments, defaults and outputs of v4.57.
"""

import re
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, pipelines
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import PipelineRegistry

from .pipeline_random_transformer import LENGTHS, Seq2SeqPipeline, check_type, tokenizer_languages

DEFAULTS = {"num_beams": 4, "max_new_tokens": 256}  # of v4, for options that the model's generation_config does not set
UNLIMITED = int(1e30)  # the model_max_length of a tokenizer without a limit
TRANSLATION = re.compile(r"translation_([^_]+)_to_([^_]+)")


class Text2TextGenerationPipeline(Seq2SeqPipeline):
    """`pipeline("text2text-generation")` as in transformers v4.

    A text returns a list with a dictionary for each of `num_return_sequences` outputs. A list of texts returns a list
    of dictionaries, or of lists of dictionaries if there are several outputs per text. A list of lists of texts returns
    such a list for each inner list. Another iterable returns an iterator over lists.

    Differences from `pipeline("seq2seq")`: 4 beams and at most 256 new tokens, unless the model's `generation_config`
    has other values; `task_specific_params` of the model's configuration are applied; texts may be blank, and are only
    truncated with `truncation`, even if they are longer than `tokenizer.model_max_length`. Texts that are longer than a
    table of learned positions raise a `ValueError`.

    Args:
        return_tensors: return token ids, `[target_len]`, as `"generated_token_ids"` instead of the text.
        truncation: truncate texts to `tokenizer.model_max_length`.
        stop_sequence: text whose first token ends an output.
        **options: the other arguments of `Seq2SeqPipeline`.
    """

    return_name = "generated"

    def __init__(self, model: Any, *args: Any, task: str = "", **options: Any):
        defaults: dict[str, Any] = {"clean_up_tokenization_spaces": False, **task_options(model, task, options)}
        if options.get("max_source_tokens") is None:
            defaults["truncation"] = False
        super().__init__(model, *args, task=task, **{**defaults, **options})

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Generate from one text, a list of texts, a list of such lists or a stream; see the class."""
        if isinstance(inputs, list | tuple) and inputs and all(isinstance(text, list | tuple) for text in inputs):
            answers = iter(self([text for texts in inputs for text in texts], **options))
            return [[next(answers) for _ in texts] for texts in inputs]
        answers = super().__call__(inputs, **options)
        if isinstance(inputs, list | tuple) and all(len(answer) == 1 for answer in answers):
            return [answer[0] for answer in answers]
        return answers

    def _sanitize_parameters(  # type: ignore[override]
        self,
        truncation: Any = None,
        return_tensors: bool | None = None,
        return_text: bool | None = None,  # noqa: ARG002, the default, as in v4
        stop_sequence: str | None = None,
        **options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        check_type("return_tensors", return_tensors, bool, "True or False")
        if truncation is None and options.get("max_source_tokens") is not None:
            truncation = True
        if truncation is not None:  # may be a TruncationStrategy or its value
            truncation = getattr(truncation, "value", truncation) not in (False, "do_not_truncate")
            limit = self.tokenizer.model_max_length if truncation else UNLIMITED
            options = {"max_source_tokens": limit, "truncation": truncation} | options
        if stop_sequence is not None:
            options["eos_token_id"] = self.tokenizer.encode(stop_sequence, add_special_tokens=False)[0]
        preprocess, forward, postprocess = super()._sanitize_parameters(**options)
        if return_tensors is not None:
            postprocess["return_tensors"] = return_tensors
        return preprocess, forward, postprocess

    def check_text(self, text: Any, place: str) -> None:
        if not isinstance(text, str) or text.strip():  # blank texts are valid
            super().check_text(text, place)

    def postprocess(
        self,
        model_outputs: dict[str, Tensor],
        return_key: str | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        return_tensors: bool = False,
    ) -> list[dict[str, Any]]:
        """Convert the outputs of `_forward` for one text to a list of its answers."""
        if return_tensors:
            return [{f"{self.return_name}_token_ids": ids} for ids in model_outputs["sequences"][0]]
        answers = super().postprocess(
            model_outputs, return_key or f"{self.return_name}_text", clean_up_tokenization_spaces
        )
        return answers if isinstance(answers, list) else [answers]


class SummarizationPipeline(Text2TextGenerationPipeline):
    """`pipeline("summarization")` as in transformers v4: summaries are in `"summary_text"`."""

    return_name = "summary"


class TranslationPipeline(Text2TextGenerationPipeline):
    """`pipeline("translation")` and `pipeline("translation_en_to_de")` as in transformers v4.

    Translations are in `"translation_text"`.

    Args:
        src_lang: language of the texts; by default the first one in the name of the task.
        tgt_lang: language of the translations; by default the second one.
        **options: the other arguments of `Text2TextGenerationPipeline`.

    Languages are ignored by a model whose tokenizer has no language tags, such as Marian and T5.
    """

    return_name = "translation"

    def __init__(self, model: Any, *args: Any, task: str = "translation", **options: Any):
        named = getattr(model.config, "task_specific_params", None) or {}
        if task == "translation" and (translations := [name for name in named if name.startswith("translation")]):
            task = translations[0]
            warnings.warn(f"task 'translation' of this model is {task!r} by default.", UserWarning, stacklevel=3)
        languages = TRANSLATION.fullmatch(task)
        if languages is not None and options.get("src_lang") is None and options.get("tgt_lang") is None:
            options["src_lang"], options["tgt_lang"] = languages.groups()
        super().__init__(model, *args, task=task, **options)

    def _sanitize_parameters(  # type: ignore[override]
        self, src_lang: str | None = None, tgt_lang: str | None = None, **options: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if tokenizer_languages(self.tokenizer):
            options |= {"src_lang": src_lang, "tgt_lang": tgt_lang}
        return super()._sanitize_parameters(**options)


def task_options(model: Any, task: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The default options of a pipeline: `DEFAULTS`, overridden by `task_specific_params` of the configuration.

    Args:
        model: the model. Options that its `generation_config` sets have no default here.
        task: the task, a key of `task_specific_params`, such as those of T5.
        given: the options of the user. If they limit the length of the output, the defaults do not.
    """
    if given.get("generation_config") is not None:  # replaces all options
        return {}
    unset, config = GenerationConfig(), getattr(model, "generation_config", None)
    saved = [name for name in {*DEFAULTS, *LENGTHS} if getattr(config, name, None) not in (None, getattr(unset, name))]
    specific = (getattr(model.config, "task_specific_params", None) or {}).get(task, {})
    options: dict[str, Any] = {name: value for name, value in DEFAULTS.items() if name not in saved}
    for overriding, values in ((saved, {}), (specific, specific), (given, {})):
        if not set(LENGTHS).isdisjoint(overriding):
            options = {name: value for name, value in options.items() if name not in LENGTHS}
        options |= values
    return options


def register_tasks() -> None:
    """Register the tasks that the installed transformers does not have."""
    t5 = {"model": ("google-t5/t5-base", "a9723ea")}
    tasks = {  # with the default models of v4 and their revisions
        "text2text-generation": (Text2TextGenerationPipeline, t5),
        "summarization": (SummarizationPipeline, {"model": ("sshleifer/distilbart-cnn-12-6", "a4f8f3e")}),
        "translation": (TranslationPipeline, {("en", language): t5 for language in ("de", "fr", "ro")}),
    }
    for task, (pipeline_class, default) in tasks.items():
        if task in PIPELINE_REGISTRY.get_supported_tasks():
            continue
        # Not register_pipeline, which would save the class as the custom code of each model.
        entry = {"impl": pipeline_class, "pt": (AutoModelForSeq2SeqLM,), "default": default, "type": "text"}
        PIPELINE_REGISTRY.supported_tasks[task] = entry
        getattr(pipelines, "REMOVED_TASKS", {}).pop(task, None)  # would raise an error
        if task == "translation":
            PIPELINE_REGISTRY.check_task = check_task


def check_task(task: str) -> tuple[str, dict[str, Any], Any]:
    """`PIPELINE_REGISTRY.check_task` that also accepts `"translation_en_to_de"`."""
    languages = TRANSLATION.fullmatch(task)
    if languages is None or task in PIPELINE_REGISTRY.get_supported_tasks():
        return PipelineRegistry.check_task(PIPELINE_REGISTRY, task)
    return "translation", PIPELINE_REGISTRY.supported_tasks["translation"], languages.groups()
