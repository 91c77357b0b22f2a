"""Edits after which a model computes something else, in ways that PyTorch does or does not count."""

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def in_place(model):
    with torch.no_grad():
        model.model.encoder.layers[0].fc1.weight.mul_(3)


def data_in_place(model):
    model.model.decoder.layers[0].fc1.weight.data.mul_(3)


def data_of_bias(model):
    model.lm_head.bias.data[5] += 9


def data_of_row(model):
    model.model.shared.weight.data[7] *= -1


def data_copied(model):
    weight = model.model.encoder.layers[0].self_attn.v_proj.weight
    weight.data.copy_(-weight)


def data_replaced(model):
    weight = model.model.decoder.layers[0].encoder_attn.out_proj.weight
    weight.data = -weight.data


def from_vector(model):
    vector_to_parameters(parameters_to_vector(model.parameters()).detach() * 0.7, model.parameters())


def through_numpy(model):
    model.model.decoder.layers[0].fc2.weight.detach().numpy()[:] *= 3


def new_parameter(model):
    layer = model.model.decoder.layers[0].fc1
    layer.weight = nn.Parameter(-layer.weight.detach())


def new_parameter_of_lm_head(model):
    model.lm_head.weight = nn.Parameter(-model.lm_head.weight.detach())


def assigned_state_dict(model):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["model.decoder.layers.0.fc1.weight"][0, 1] += 9  # a single value
    model.load_state_dict(state, assign=True)


def swapped_layers(model):
    layers = model.model.encoder.layers
    layers[0], layers[1] = layers[1], layers[0]


def swapped_linear_layers(model):
    layer = model.model.decoder.layers[0].self_attn
    layer.q_proj, layer.v_proj = layer.v_proj, layer.q_proj


def buffer(model):
    model.model.encoder.embed_positions.table.data.mul_(-1)


def eps(model):
    model.model.decoder.layers[0].final_layer_norm.eps = 3.0


def embed_scale(model):
    model.model.encoder.embed_scale *= 2


def scaling(model):
    model.model.decoder.layers[0].self_attn.scaling *= 4


def merged_adapter(model):
    layer = model.model.encoder.layers[0].fc1
    layer.weight.data += torch.outer(
        torch.arange(len(layer.weight)) % 3 - 1.0, torch.arange(layer.in_features) % 2 - 0.3
    )


EDITS = {
    "in place": in_place,
    ".data in place": data_in_place,
    ".data of one bias": data_of_bias,
    ".data of one row": data_of_row,
    ".data.copy_()": data_copied,
    ".data =": data_replaced,
    "vector_to_parameters": from_vector,
    ".numpy()": through_numpy,
    "nn.Parameter": new_parameter,
    "nn.Parameter of lm_head": new_parameter_of_lm_head,
    "load_state_dict(assign=True)": assigned_state_dict,
    "swapped layers": swapped_layers,
    "swapped linear layers": swapped_linear_layers,
    "buffer": buffer,
    "LayerNorm.eps": eps,
    "embed_scale": embed_scale,
    "scaling": scaling,
    "merged LoRA": merged_adapter,
}
