"""Folders of engines that TensorRT-LLM compiled: the weights are inside, in a form that nothing here reads."""

from __future__ import annotations

from pathlib import Path


def compiled_engine(folder: Path) -> str | None:
    """Say why a folder does not tell what weights are served; ``None``: it holds no compiled engine.

    Source: NVIDIA/TensorRT-LLM, tensorrt_llm/builder.py: ``rank0.engine`` and one for each further rank, beside a
    ``config.json`` of another form than a checkpoint's.
    """
    if not folder.is_dir() or not any(folder.glob("rank*.engine")) or any(folder.glob("*.safetensors")):
        return None
    return "the folder holds an engine that TensorRT-LLM compiled: what weights are in it cannot be read from it"
