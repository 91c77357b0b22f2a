"""Methods of training, one file each.

A regularization that changes the loss or the inputs of the model is a subclass of `SmoothedCrossEntropy`, an argument
of `TranslationTrainingArguments`, and a line of `training_loss`.
"""

from ..training_arguments import TranslationTrainingArguments
from .loss import SmoothedCrossEntropy
from .r_drop import RDropLoss


def training_loss(args: TranslationTrainingArguments) -> SmoothedCrossEntropy:
    """The loss that the training arguments select."""
    if args.r_drop_alpha:
        return RDropLoss(args.label_smoothing_factor, args.r_drop_alpha)
    return SmoothedCrossEntropy(args.label_smoothing_factor, overwrite=True)
