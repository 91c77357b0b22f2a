"""Methods of training, one file each.

CONTRIBUTING.md has the steps to add a regularization, for which `r_drop.py` is the model.
"""

from transformers import PreTrainedTokenizerBase

from ..training_arguments import TranslationTrainingArguments
from .augmentation import Augmentation
from .bpe_dropout import BPEDropout
from .loss import SmoothedCrossEntropy
from .r_drop import RDropLoss


def make_training_loss(args: TranslationTrainingArguments) -> SmoothedCrossEntropy:
    """The loss that the training arguments select."""
    if args.r_drop_alpha:
        return RDropLoss(args.label_smoothing_factor, args.r_drop_alpha)
    return SmoothedCrossEntropy(args.label_smoothing_factor, overwrite=True)


def retokenizer_of(
    args: TranslationTrainingArguments, tokenizer: PreTrainedTokenizerBase, max_length: int | None
) -> Augmentation | BPEDropout | None:
    """The retokenizer for BPE-dropout, augmentation or both; `None` without them.

    Args:
        args: the training arguments.
        tokenizer: the tokenizer.
        max_length: the number of learned positions of the model, which limits the segmentations of BPE-dropout; `None`
            for no limit. Augmented texts have no limit, see `training.checks`.
    """
    bpe_dropout = BPEDropout(tokenizer, args.bpe_dropout, max_length) if args.bpe_dropout else None
    return Augmentation(tokenizer, bpe_dropout) if args.augment else bpe_dropout
