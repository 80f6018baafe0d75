"""A model with hand-built weights that answers a question with the reference that stands in its prompt.

A Llama of one layer. A reference is three tokens, one of each of three classes. The question's key asks for the first
class, the first token's for the second, and so on: attention finds the token of that class wherever it stands, and its
value says which it is. Positions are taken out of it by a RoPE base so large that the dimensions that are compared do
not turn. Runs in the child only: it needs torch.
"""

from __future__ import annotations

from typing import Any

from kvgate.probes.evaluation.references import CLASSES, DIGITS, QUESTION, TOKENS, reference_token

_HEAD = 64
_CLASS_DIMENSION = 16  # of a head; the first ones turn with the position
_SHARP = 12.0  # how much likelier the token that is asked for is than another, in nats
_LOUD = 12.0  # how much likelier the token that was found is than another


def copying_model(seed: int) -> Any:
    """Return the model.

    Args:
        seed: of the order in which values name tokens: of two models with different seeds neither understands what
            the other stored.

    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    # The residual stream: which token (one place each), its class, what it asks for, and what was found.
    own, kinds, asked, found = 0, TOKENS, TOKENS + CLASSES, TOKENS + 2 * CLASSES
    values = CLASSES * DIGITS
    width = -(-(found + values) // _HEAD) * _HEAD
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=width,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=_HEAD,
        rope_theta=1e30,
        rope_parameters={"rope_type": "default", "rope_theta": 1e30},
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    config._attn_implementation = "eager"
    module = LlamaForCausalLM(config)
    order = torch.randperm(values, generator=torch.Generator().manual_seed(seed)).tolist()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        embedding = module.model.embed_tokens.weight
        layer = module.model.layers[0].self_attn
        for token in range(TOKENS):
            embedding[token, own + token] = 1.0
        tokens = [(kind, digit, reference_token(kind, digit)) for kind in range(CLASSES) for digit in range(DIGITS)]
        for kind, digit, token in tokens:
            embedding[token, kinds + kind] = 1.0
            if kind + 1 < CLASSES:
                embedding[token, asked + kind + 1] = 1.0
            value = order[kind * DIGITS + digit]
            layer.v_proj.weight[value, own + token] = 1.0
            module.lm_head.weight[token, found + kind * DIGITS + digit] = _LOUD
        embedding[QUESTION, asked] = 1.0
        # A norm of 1 over `width` numbers: what stands out comes in at about its root, whatever else is there.
        scale = (_SHARP * _HEAD**0.5) ** 0.5 / (width / 3) ** 0.5
        for kind in range(CLASSES):
            layer.q_proj.weight[_CLASS_DIMENSION + kind, asked + kind] = scale * 3
            layer.k_proj.weight[_CLASS_DIMENSION + kind, kinds + kind] = scale
        for number, value in enumerate(order):
            layer.o_proj.weight[found + number, value] = 1.0
    return module
