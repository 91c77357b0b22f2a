"""peft adapters: default target modules, training, saving, merging and generation."""

import pytest
import torch
from peft import (
    AdaLoraConfig,
    IA3Config,
    LNTuningConfig,
    LoHaConfig,
    LoraConfig,
    PeftModel,
    PolyConfig,
    get_peft_model,
)
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM, AutoModelForTokenClassification

from modeling_random_transformer import RandomTransformerForConditionalGeneration
from tests.helpers.models import padded_batch, random_ids, tiny_model

BATCH = padded_batch([8, 5, 3])
LABELS = random_ids(3, 6, seed=1)
METHODS = {
    "LoRA": (LoraConfig(), {"q_proj", "v_proj"}),
    "LoRA, no task": (LoraConfig(), {"q_proj", "v_proj"}),
    "AdaLoRA": (AdaLoraConfig(total_step=9), {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"}),
    "IA3": (IA3Config(), {"q_proj", "v_proj", "fc2"}),
    "LoHa": (LoHaConfig(), {"q_proj", "v_proj"}),
    "layer norms": (LNTuningConfig(), {"self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"}),
}


def lora(model, **options):
    return get_peft_model(model, LoraConfig(task_type="SEQ_2_SEQ_LM", **options))


def moved(model):
    """Random weights, since a new adapter's output is zero."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "lora_embedding_A" in name:
                parameter.normal_(std=0.5, generator=generator)
    return model.eval()


def generated(model):
    return model.generate(**BATCH, num_beams=4, max_new_tokens=12)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_has_default_target_modules(method):
    config, names = METHODS[method]
    config.task_type = None if method == "LoRA, no task" else "SEQ_2_SEQ_LM"
    model = get_peft_model(tiny_model(), config)
    adapted = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)}
    assert adapted == names
    model(**BATCH, labels=LABELS).loss.backward()
    assert any(parameter.grad.abs().sum() > 0 for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("targets", [["q_proj", "lm_head"], ["q_proj", "embed_tokens"]])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.filterwarnings("ignore:Model (has|with) `tie_word_embeddings=True`", "ignore:Input and output embeddings")
def test_merged_models_with_two_embeddings_keep_their_output_layer(tied, targets, tmp_path):
    """peft compares the output layer with the encoder's embedding, and sets `tie_word_embeddings` to False."""
    model = tiny_model(share_embeddings=False, tie_word_embeddings=tied).double()
    merged = moved(lora(model, target_modules=targets)).merge_and_unload()
    merged.save_pretrained(tmp_path)
    loaded, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    inputs = {**BATCH, "decoder_input_ids": LABELS}
    torch.testing.assert_close(loaded(**inputs).logits, merged(**inputs).logits)
    assert (loaded.lm_head.weight is loaded.model.decoder.embed_tokens.weight) == tied


@pytest.mark.filterwarnings("ignore:Model (has|with) `tie_word_embeddings=True`")
@pytest.mark.parametrize(
    ("tied", "target"),
    [
        *((True, target) for target in ("lm_head", "embed_tokens", "shared")),
        *((False, target) for target in ("lm_head", "embed_tokens")),
    ],
)
def test_only_adapters_of_modules_with_their_own_weights_can_be_merged(tied, target):
    """The limit that the guide states and the command line enforces."""
    adapted = moved(lora(tiny_model(share_embeddings=tied, tie_word_embeddings=tied).double(), target_modules=[target]))
    inputs = {**BATCH, "decoder_input_ids": LABELS}
    before = adapted(**inputs).logits
    assert torch.allclose(adapted.merge_and_unload()(**inputs).logits, before) != tied


def test_saved_loaded_and_merged_adapters_generate_the_same(tmp_path):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    tiny_model(spread=2.0).save_pretrained(base)
    adapted = moved(lora(AutoModelForSeq2SeqLM.from_pretrained(base)))
    adapted.save_pretrained(adapter)
    expected = generated(adapted)
    by_peft = PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(base), adapter)
    by_folder = AutoModelForSeq2SeqLM.from_pretrained(adapter)
    by_library = AutoModelForSeq2SeqLM.from_pretrained(base)
    by_library.load_adapter(str(adapter))
    for model in (by_peft, by_folder, by_library):
        assert torch.equal(generated(model), expected)
    merged = by_peft.merge_and_unload()
    assert type(merged) is RandomTransformerForConditionalGeneration
    assert torch.equal(generated(merged), expected)
    assert not torch.equal(generated(AutoModelForSeq2SeqLM.from_pretrained(base)), expected)


@pytest.mark.parametrize(
    ("kind", "task"),
    [(AutoModelForQuestionAnswering, "QUESTION_ANS"), (AutoModelForTokenClassification, "TOKEN_CLS")],
)
def test_head_layer_is_trained_and_saved(kind, task, tmp_path):
    tiny_model().save_pretrained(tmp_path / "base")
    model = get_peft_model(kind.from_pretrained(tmp_path / "base"), LoraConfig(task_type=task)).eval()
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad and "lora_" not in name]
    assert len(trained) == 2
    model.save_pretrained(tmp_path / "adapter")
    again = PeftModel.from_pretrained(kind.from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
    with torch.no_grad():
        assert torch.equal(again(**BATCH)[0], model(**BATCH)[0])


def test_adapters_get_three_dimensions_in_fast_steps():
    """Poly supports inputs of shape [batch, length, width] only."""
    config = PolyConfig(task_type="SEQ_2_SEQ_LM", r=4, n_tasks=2, n_splits=1)
    model = get_peft_model(tiny_model(spread=2.0), config).eval()
    options = {**BATCH, "task_ids": torch.tensor([0, 1, 0]), "max_new_tokens": 6}
    assert torch.equal(model.generate(**options), model.generate(**options, use_cache=False))
