"""What the name of a stored entry says, what it cannot say, and which names a request's entries will have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvgate.rules.manifest import Manifest


@dataclass(frozen=True)
class StoredKey:
    """One name that a connector gave, taken apart.

    Attributes:
        connector: the id of the connector's profile.
        name: the name itself: a key of the store, or a path relative to the store's folder, with ``/`` in it.
        namespace: what isolates it there (a salt, a tag, a prefix); ``None`` where nothing does.
        model: the model's name as the connector writes it; ``None`` where the name holds none.
        fields: what else it says, in the connector's own words (``world_size``, ``worker``, ``group``, ``dtype``, ...).
        hash: of the tokens, as it stands there.

    """

    connector: str
    name: str
    namespace: str | None
    model: str | None
    fields: Mapping[str, str | int]
    hash: str


@dataclass(frozen=True)
class Media:
    """An image or the like in a prompt: its identifier as the engine knows it, and the tokens that stand for it."""

    identifier: str
    offset: int
    length: int


@dataclass(frozen=True)
class Request:
    """A prompt, and what else of a request can enter a key.

    Attributes:
        token_ids: the whole prompt's.
        salt: the request's ``cache_salt``.
        adapter: the name of the LoRA adapter that answers.
        media: in the order in which they stand.
        embeds: the prompt's embeddings where it is given as such, as the engine holds them, a row for each token; the
            ids are 0 then.

    """

    token_ids: Sequence[int]
    salt: str | None = None
    adapter: str | None = None
    media: tuple[Media, ...] = ()
    embeds: bytes | None = None


@dataclass(frozen=True)
class Prediction:
    """The names under which the entries of one request lie, once an engine has stored them.

    Attributes:
        names: in the order of the prompt, ranks and groups of one stretch beside each other; ``None`` where
            something is unknown that they depend on.
        assumed: what was taken for granted, a sentence each.
        unknown: what would have to be known, a sentence each, with the manifest path.

    """

    names: tuple[str, ...] | None
    assumed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scheme:
    """How one connector names its entries.

    Attributes:
        connector: the id of its profile.
        parse: takes a name apart; ``None`` for one that is not of this scheme: never a guess.
        predict: the names of a request's entries; a name is only given where every part of it is known.
        model: a deployment's model as ``StoredKey.model`` spells it, which is how the two are compared; ``None``
            where it is not known, or no name holds one.
        unsaid: what a name cannot say though stored KV depends on it: manifest path to the reason.
        within: names of ``StoredKey.fields`` that number what one deployment stores: its ranks, layers, parts.
        lies_in_stores: whether entries lie in stores under these names; else they stay in the engine's memory, and what
            bears such a name elsewhere is something else.

    """

    connector: str
    parse: Callable[[str], StoredKey | None]
    predict: Callable[[Manifest, Request], Prediction]
    model: Callable[[Manifest], str | None]
    unsaid: Mapping[str, str] = field(default_factory=dict)
    within: frozenset[str] = frozenset()
    lies_in_stores: bool = True
