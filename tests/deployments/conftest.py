"""A small checkpoint with everything a capture reads: tensors, config, tokenizer, template."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 512,
}

MakeCheckpoint = Callable[..., Path]


def _tensors(extra: dict[str, bytes]) -> bytes:
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": [300, 8],
        "model.norm.weight": [8],
        "lm_head.weight": [300, 8],
        f"{layer}input_layernorm.weight": [8],
        f"{layer}post_attention_layernorm.weight": [8],
        f"{layer}mlp.gate_proj.weight": [16, 8],
        f"{layer}mlp.up_proj.weight": [16, 8],
        f"{layer}mlp.down_proj.weight": [8, 16],
        **{f"{layer}self_attn.{part}_proj.weight": [8, 8] for part in "qkvo"},
    }
    header: dict[str, Any] = {}
    body = b""
    for number, (name, shape) in enumerate(shapes.items()):
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(body), len(body) + size]}
        body += bytes([number]) * size
    for name, data in extra.items():
        header[name] = {"dtype": "F32", "shape": [len(data) // 4], "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@pytest.fixture(scope="session")
def remembered() -> dict[str, Any]:
    return {}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, remembered: dict[str, Any]) -> None:
    """Examine tokenizer and template in a child process once for each different input of the whole run."""
    from kvgate.corpora.examine import examine as real_examine
    from kvgate.corpora.snapshots.snapshot import open_snapshot
    from kvgate.deployments import capture as module

    def examine(folder: Path, *, template: str | None, snapshot_to: Path, **arguments: Any) -> Any:
        override = Path(template).read_text() if template is not None and Path(template).exists() else template
        files = [(folder / name).read_text() for name in ("tokenizer.json", "tokenizer_config.json")]
        key = json.dumps([files, override, arguments["corpus"] is None, arguments["options"]], sort_keys=True)
        if key not in remembered:
            facts, snapshot = real_examine(folder, template=template, snapshot_to=snapshot_to, **arguments)
            remembered[key] = facts, None if snapshot is None else snapshot.path.read_bytes()
        facts, content = remembered[key]
        if content is None:
            return facts, None
        snapshot_to.write_bytes(content)
        return facts, open_snapshot(snapshot_to, None)

    monkeypatch.setattr(module, "examine", examine)


@pytest.fixture(scope="session")
def tokenizer_json() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    for character in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[character] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str()


@pytest.fixture
def make_checkpoint(tmp_path: Path, tokenizer_json: str) -> MakeCheckpoint:
    """Write a checkpoint folder; keyword arguments replace config fields, ``None`` drops one."""

    def make(name: str = "checkpoint", tensors: dict[str, bytes] | None = None, **fields: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        config = {key: value for key, value in {**LLAMA, **fields}.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").write_bytes(_tensors(tensors or {}))
        (folder / "tokenizer.json").write_text(tokenizer_json)
        tokenizer_config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "chat_template": TEMPLATE,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
        return folder

    return make
