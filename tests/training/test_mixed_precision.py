"""Mixed precision: the logits are not converted to float32, and generation is not affected."""

import torch

from tests.helpers.trainer_worker import new_trainer, pairs


def test_the_loss_gets_logits_in_half_precision(tmp_path):
    trainer = new_trainer(tmp_path, bf16=True, max_steps=1)
    loss, seen = trainer.compute_loss_func, []

    def recorded(outputs, labels, **kwargs):
        seen.append(outputs["logits"].dtype)
        return loss(outputs, labels, **kwargs)

    trainer.compute_loss_func = recorded
    trainer.train()
    assert seen == [torch.bfloat16]
    assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.float32}


def test_evaluation_decodes_with_the_fast_path(tmp_path):
    trainer = new_trainer(tmp_path, eval_dataset=pairs(4), bf16=True)
    forward = trainer.model.forward
    trainer.predict(trainer.eval_dataset)
    assert trainer.model.forward == forward
    assert trainer.model.eval().fallback_reason() is None
