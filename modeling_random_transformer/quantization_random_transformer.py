"""Dynamic int8 quantization for inference on CPUs, as a quantization method of transformers."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import logging
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from .ops_random_transformer import quantize_rows

logger = logging.get_logger(__name__)

METHOD = "dynamic_int8"


class DynamicInt8Config(QuantizationConfigMixin):
    """Int8 weights with one scale per output, and activations that are quantized row by row at each call.

        model = AutoModelForSeq2SeqLM.from_pretrained(folder, quantization_config=DynamicInt8Config())

    The linear layers of the encoder and decoder and the output layer of language models are quantized. Embeddings,
    layer norms and classification heads keep float32. An output layer that is tied to an embedding is quantized again
    each time the model is loaded, so a saved folder contains the embedding only.

    The model cannot be trained, and its vocabulary cannot be resized, before `model.dequantize()`. `save_pretrained`
    and `from_pretrained` work as usual.
    """

    def __init__(self, **_: Any):
        self.quant_method = METHOD


class DynamicInt8Quantizer(HfQuantizer):
    """Replaces linear layers by `Int8Linear` while transformers loads a model."""

    def validate_environment(self, *args: Any, **_: Any) -> None:
        """No requirement: without int8 kernels, the layers multiply in floating point."""

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        if dtype != torch.float32:
            logger.info("%s requires dtype float32 for the other weights, got %s.", METHOD, dtype)
        return torch.float32

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        if not hasattr(model, "int8_linear_class"):
            raise ValueError(f"quantization_config must be of another method for {type(model).__name__}, got {METHOD}.")
        layers = {module for stack in model.base_model.stacks for module in stack.modules()}
        if not is_output_tied(model):
            layers.add(model.get_output_embeddings())
        for name, layer in list(model.named_modules()):
            if layer in layers and isinstance(layer, nn.Linear):
                dtype = torch.int8 if self.pre_quantized else None  # None: floating point, until it is quantized
                bias = layer.bias is not None
                with torch.device("meta"):
                    int8_layer = model.int8_linear_class(layer.in_features, layer.out_features, bias, dtype)
                model.set_submodule(name, int8_layer)

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> None:
        model.requires_grad_(False)
        if is_output_tied(model):
            tied = model.get_output_embeddings()
            layer = model.int8_linear_class.from_linear(tied)
            if hasattr(tied, "_hf_hook"):  # of a device map: it moves the inputs to the layer's device
                # Accelerate's function. Checkpoints contain this file and must not require Accelerate.
                from transformers.generation.utils import add_hook_to_module

                add_hook_to_module(layer, tied._hf_hook)
            model.set_output_embeddings(layer)
            model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        """Replace the int8 layers by linear layers in `dtype`. A tied output layer is tied to the embedding again."""
        for name, layer in list(model.named_modules()):
            if isinstance(layer, model.int8_linear_class):
                model.set_submodule(name, layer.to_linear())
        model.tie_weights()
        model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)
        if isinstance(dtype, str):  # save_pretrained sets config.dtype to a name
            dtype = getattr(torch, dtype)
        return model.to(dtype).requires_grad_(True)

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        module = model.get_submodule(param_name.rpartition(".")[0])
        return not self.pre_quantized and param_name.endswith(".weight") and hasattr(module, "weight_scale")

    def get_quantize_ops(self) -> ConversionOps:
        return QuantizeRows()

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The weights to save: without those of a tied output layer."""
        weights = model.state_dict()
        if is_output_tied(model):
            head = next(name for name, module in model.named_modules() if module is model.get_output_embeddings())
            for name in ("weight", "weight_scale"):  # the bias is not tied
                del weights[f"{head}.{name}"]
        return weights, {}

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


class QuantizeRows(ConversionOps):
    """`quantize_rows` for a weight that transformers loads."""

    def convert(self, input_dict: dict[str, Any], full_layer_name: str = "", **_: Any) -> dict[str, Tensor]:
        """`{name: [weight]}` → the int8 weight, and its scale as `{name}_scale`."""
        ((weight,),) = input_dict.values()
        quantized, scale = quantize_rows(weight)
        return {full_layer_name: quantized, f"{full_layer_name}_scale": scale}


def is_output_tied(model: Any) -> bool:
    """Whether the weights of the output layer are those of an embedding."""
    return model.get_output_embeddings() is not None and bool(model.config.tie_word_embeddings)


# A checkpoint's copy of this file registers the same classes again, which transformers' decorators do not allow.
AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD] = DynamicInt8Config
AUTO_QUANTIZER_MAPPING[METHOD] = DynamicInt8Quantizer
