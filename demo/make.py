"""Make the demonstration's input: four releases of one small model, as a serving team has them on disk.

Each release is a checkpoint in safetensors that transformers loads, a LoRA adapter and the command that starts it.
Everything is made here and comes out the same on every machine; nothing is downloaded.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from kvgate.corpora.conversations.corpus import load_corpus

Tensors = dict[str, np.ndarray[Any, np.dtype[np.float32]]]

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY, RANK = 64, 160, 4, 4, 2, 16, 1200, 8
SPECIAL = ["<|begin|>", "<|role|>", "<|end|>"]

TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|role|>' + message['role'] + '\\n' + (message['content'] or '') + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|role|>assistant\\n' }}
{%- endif %}
"""

IMAGE = "vllm/vllm-openai:v0.33.0@sha256:" + "5b0bcabd1ed22e9fb1310cf6c2dec7cdef19f0ad69efa1f392e94a4333501270"

SERVE = """\
#!/bin/sh
# Starts support-assistant. The model, the adapter and the cache are mounted where every release finds them.
docker run --gpus all \\
  -v /srv/models/support-assistant:/models/support-assistant \\
  -v /srv/adapters:/adapters \\
  -v /srv/kv:/kv \\
  -e PYTHONHASHSEED=0 \\
  {image} \\
  --model /models/support-assistant \\
  --served-model-name support-assistant \\
  --enable-lora --lora-modules billing=/adapters/billing \\
  --attention-backend FLASH_ATTN \\
  --block-size 16 \\
  --prefix-caching-hash-algo sha256_cbor \\
  --kv-transfer-config '{transfer}'
"""

TRANSFER = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 8 << 30,
        "secondary_tiers": [{"type": "fs", "root_dir": "/kv/support-assistant"}],
    },
}

# What no launch line says, declared once for every capture below this folder.
DECLARED = """\
capture:
  set:
    engine.accelerator: H200
    cache.tenancy: {boundary: tenant, carried_by: cache_salt}
    cache.ttl: 30d
    cache.cleanup_owner: team-serving
    inputs:
      system_prompts: {}
      tool_schemas: {}
      document_sets: {}
"""


def main(target: Path) -> None:
    """Write the releases and ``kvgate.yaml`` into ``target``, in place of what an earlier run left there."""
    target.mkdir(parents=True, exist_ok=True)
    (target / "kvgate.yaml").write_text(DECLARED, encoding="utf-8")
    random = np.random.default_rng(2026)
    base, adapter = base_weights(random), adapter_weights(random)
    vocabulary = train()

    tuned = {name: array.copy() for name, array in base.items()}
    tuned["model.layers.2.self_attn.k_proj.weight"] += 0.01 * _normal(random, KV_HEADS * HEAD_DIM, HIDDEN)

    release(target / "serving", vocabulary, base, adapter)
    release(target / "resharded", vocabulary, base, adapter, files=3)
    release(target / "finetuned", vocabulary, tuned, adapter)
    release(target / "unsalted", vocabulary, base, adapter)


def release(folder: Path, vocabulary: Tokenizer, weights: Tensors, adapter: Tensors, files: int = 1) -> None:
    """Write one release: ``model/``, ``adapters/billing/`` and ``serve.sh``."""
    shutil.rmtree(folder, ignore_errors=True)
    model, billing = folder / "model", folder / "adapters" / "billing"
    model.mkdir(parents=True)
    billing.mkdir(parents=True)
    write_weights(model, weights, files)
    _write_json(model / "config.json", model_config())
    vocabulary.save(str(model / "tokenizer.json"))
    _write_json(model / "tokenizer_config.json", tokenizer_config())
    (model / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    _save(billing / "adapter_model.safetensors", adapter)
    _write_json(billing / "adapter_config.json", adapter_config())
    (folder / "serve.sh").write_text(SERVE.format(image=IMAGE, transfer=json.dumps(TRANSFER)), encoding="utf-8")


def base_weights(random: np.random.Generator) -> Tensors:
    """Return the tensors of a small Llama, by the names that transformers gives them."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        shapes |= {
            f"{name}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{name}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{name}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{name}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{name}.mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{name}.mlp.up_proj.weight": (INNER, HIDDEN),
            f"{name}.mlp.down_proj.weight": (HIDDEN, INNER),
        }
    shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    weights = {name: 0.02 * _normal(random, *shape) for name, shape in shapes.items()}
    norms = [f"model.layers.{n}.{part}_layernorm" for n in range(LAYERS) for part in ("input", "post_attention")]
    return weights | {f"{name}.weight": np.ones(HIDDEN, np.float32) for name in (*norms, "model.norm")}


def adapter_weights(random: np.random.Generator) -> Tensors:
    """Return a LoRA adapter over the q and v projections, by the names that PEFT gives its tensors."""
    tensors: Tensors = {}
    for layer in range(LAYERS):
        for module, width in (("q_proj", HEADS * HEAD_DIM), ("v_proj", KV_HEADS * HEAD_DIM)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = 0.02 * _normal(random, RANK, HIDDEN)
            tensors[f"{name}.lora_B.weight"] = 0.02 * _normal(random, width, RANK)
    return tensors


def write_weights(folder: Path, weights: Tensors, files: int) -> None:
    """Write one file, or several with the index that ties them together."""
    if files == 1:
        _save(folder / "model.safetensors", weights)
        return
    names = sorted(weights)
    index: dict[str, str] = {}
    for number in range(files):
        file = f"model-{number + 1:05}-of-{files:05}.safetensors"
        held = names[number::files]
        _save(folder / file, {name: weights[name] for name in held})
        index |= dict.fromkeys(held, file)
    size = sum(2 * array.size for array in weights.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": index})


def train() -> Tokenizer:
    """Train a byte-level BPE tokenizer on the texts of the diagnostic corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    messages = [message for one in load_corpus("diagnostic").conversations() for message in one.messages or ()]
    contents = [message.get("content") for message in messages]
    tokenizer.train_from_iterator([text for text in contents if isinstance(text, str)], trainer)
    return tokenizer


def model_config() -> dict[str, Any]:
    """Return ``config.json``."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float16",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }


def tokenizer_config() -> dict[str, Any]:
    """Return ``tokenizer_config.json``."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[2],
        "model_max_length": 4096,
    }


def adapter_config() -> dict[str, Any]:
    """Return ``adapter_config.json``."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "support-assistant",
        "r": RANK,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "v_proj"],
    }


def _normal(random: np.random.Generator, *shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return random.standard_normal(shape, dtype=np.float32)


def _save(path: Path, tensors: Tensors) -> None:
    save_file({name: array.astype(np.float16) for name, array in tensors.items()}, path, {"format": "pt"})


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
