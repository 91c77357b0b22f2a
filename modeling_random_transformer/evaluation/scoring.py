"""The metrics by name, and the scores of a corpus in one call."""

from collections.abc import Sequence
from importlib import import_module
from itertools import chain
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from .checks import check_choice, check_names, check_texts

if TYPE_CHECKING:
    from .corpus_metric import CorpusMetric

# Each metric's folder, and the class in it.
METRICS = {"bleu": "Bleu", "chrf": "Chrf"}


def load_metric(name: str) -> "CorpusMetric":
    """One of this package's `evaluate` metrics; nothing is downloaded and nothing stays on the disk.

    The texts are kept in memory and every process has its own: under Trainer, which gathers the predictions and calls
    `compute_metrics` in each process, all come to the same score and none waits for another's files.

    Args:
        name: `"bleu"`, or `"chrf"` for chrF++.

    Returns:
        An `evaluate.Metric`. `compute(predictions=…, references=…, **options)` returns a dictionary with `score`
        (0 to 100), `name`, `signature` (sacrebleu's, with its version) and the metric's details; `inputs_description`
        tells the options.

    Raises:
        ValueError: there is no such metric.
        ImportError: the extra `train` is not installed.
    """
    # evaluate.load would copy the file to a cache below the home folder and import it there. Imported from where it
    # lies, it needs neither a writable home nor a lock between processes. evaluate makes a folder for each metric all
    # the same; one that keeps its texts in memory never opens it.
    with TemporaryDirectory() as folder:
        return _metric_class(name)(cache_dir=folder, keep_in_memory=True)


def score(
    predictions: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    metrics: str | Sequence[str] = ("bleu", "chrf"),
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """Score translations as sacrebleu's command line does on files of the same lines.

    ```python
    scores = score(["the cat sat down"], ["the cat sat down"])
    print(scores["bleu"]["score"], scores["bleu"]["signature"])
    ```

    Args:
        predictions: the translations, plain text.
        references: for every prediction one text, or a list of texts.
        metrics: `"bleu"`, `"chrf"` (chrF++) or both.
        **options: options of the metrics, such as `tokenize="zh"` and `lowercase=True`; each goes to those of
            `metrics` that have it. `load_metric(name).inputs_description` tells them all.

    Returns:
        For every metric its `score` (0 to 100), `name`, `signature` (sacrebleu's, with its version) and details;
        `json.dumps` takes it as it is.

    Raises:
        ValueError: unequal numbers of predictions and references, or an argument that is not allowed; the message
            names it.
        ImportError: the extra `train` is not installed.
    """
    options_of = divide_options(metrics, options)
    predictions, references = check_texts(predictions, references)
    return {
        name: load_metric(name).compute(predictions=predictions, references=references, **chosen)
        for name, chosen in options_of.items()
    }


def divide_options(metrics: str | Sequence[str], options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """For every metric those of the options that it has, checked.

    Raises:
        ValueError: a metric does not exist, an option is none of theirs, or a value is not allowed.
        ImportError: the extra `train` is not installed.
    """
    names = [metrics] if isinstance(metrics, str) else list(metrics or ())
    if not names:
        raise ValueError(f"metrics must name at least one of {', '.join(map(repr, METRICS))}, got none.")
    check_names("metrics", names, METRICS)
    known = {name: _metric_class(name).option_names() for name in names}
    check_names("options", options, dict.fromkeys(chain(*known.values())))
    divided = {name: {key: options[key] for key in options if key in known[name]} for name in names}
    for name, chosen in divided.items():
        _metric_class(name).scorer(**chosen)
    return divided


def _metric_class(name: str) -> type["CorpusMetric"]:
    check_choice("name", name, METRICS)
    try:
        module = import_module(f"{__package__}.{name}.{name}")
    except ImportError as error:
        raise ImportError(
            "The metrics need datasets, evaluate and sacrebleu: pip install 'random-transformer[train]'.",
            name=error.name,
        ) from error
    return getattr(module, METRICS[name])
