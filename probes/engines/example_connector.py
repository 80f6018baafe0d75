"""vLLM's example connector in front of scratch folders: one safetensors file for each layer of a prompt.

Source: vllm 0.32.0 wheel, distributed/kv_transfer/kv_connector/v1/example_connector.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.probes.engines.entries import Stretch, foretold, stored
from kvgate.probes.engines.layout import Layout, UnlikeError
from kvgate.probes.engines.places import FolderPlaces, Places
from kvgate.rules.manifest import Manifest
from kvgate.stores.keys.stored import Request

_ID = "vllm-example"
_HEADER = 1 << 16  # bytes in front of a file's numbers; a hundred are enough for one tensor
_DTYPES: Mapping[str, str] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class ExampleConnector:
    """It writes files before it answers.

    Args:
        places: scratch folders.

    """

    def __init__(self, places: FolderPlaces) -> None:
        self.places: Places = places
        self.transfer: Mapping[str, Any] = {
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(places.place)},
        }

    def forget(self) -> None:
        """Nothing: it looks at the folder every time."""

    def settled(self, manifest: Manifest, request: Request) -> None:
        """Nothing: what it writes is there before the answer."""

    def held(self, manifest: Manifest, request: Request) -> int:
        """See :class:`kvgate.probes.engines.connectors.Connector`: it stores whole prompts."""
        found = set(foretold(_ID, manifest, request)) & stored(_ID, self.places).keys()
        return _kept(request, int(manifest.value("engine.block_size") or 1)) if found else 0

    def stored(self, manifest: Manifest, request: Request, layout: Layout) -> list[Stretch]:
        """See :class:`kvgate.probes.engines.connectors.Connector`."""
        import numpy as np

        if layout.ranks > 1:
            return []  # each rank writes the same files
        there = stored(_ID, self.places)
        for entry in foretold(_ID, manifest, request):
            if entry not in there:
                continue
            names = {str(key.fields["layer"]): key.name for key in there[entry]}
            if set(names) != set(layout.layers):
                raise UnlikeError("other layers")
            # Rounded up to blocks: what it keeps of a prompt is whole ones.
            size = len(request.token_ids) * layout.token_bytes + _HEADER
            read = [_layer(self.places.read(names[layer], size), layout) for layer in layout.layers]
            if len({one.shape for one in read}) != 1:
                raise UnlikeError("layers of several lengths")
            return [np.stack(read)]
        return []


def _kept(request: Request, block: int) -> int:
    return (len(request.token_ids) - 1) // block * block


def _layer(data: bytes, layout: Layout) -> Any:
    """Return what one file holds, (plane, token, number).

    Raises:
        UnlikeError: it is no such file, or holds something else.

    """
    from safetensors import SafetensorError, deserialize

    try:
        tensors = dict(deserialize(data))  # type: ignore[no-untyped-call]
    except SafetensorError:
        raise UnlikeError("no safetensors file") from None
    if tensors.keys() != {"kv_cache"}:
        raise UnlikeError("not one tensor of KV")
    tensor = tensors["kv_cache"]
    if tensor["dtype"] != _DTYPES[layout.dtype]:
        raise UnlikeError(f"{tensor['dtype']}, and not {layout.dtype}")
    tokens = _tokens(tensor["shape"], layout)
    if tokens is None:
        raise UnlikeError(f"a tensor of {tensor['shape']}")
    return layout.array(bytes(tensor["data"]), (layout.planes, tokens, layout.width))


def _tokens(shape: Sequence[int], layout: Layout) -> int | None:
    """Return how many tokens a tensor of this shape holds; ``None`` where it is of another layout."""
    planes, rest = (shape[:1], shape[1:]) if layout.planes > 1 else ([1], shape)
    if list(planes) != [layout.planes] or not rest or math.prod(rest[1:]) != layout.width:
        return None
    return rest[0]
