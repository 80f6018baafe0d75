"""Edits of real tokenizer files: one revision of each, as a publisher might have made it."""

from __future__ import annotations

from typing import Any


def without_tide(tokenizer: dict[str, Any]) -> None:
    """Drop the merges whose result is the word of the first conversation."""
    model = tokenizer["model"]
    kept = [merge for merge in model["merges"] if "".join(merge) != "Ġtide"]
    assert len(kept) < len(model["merges"])
    model["merges"] = kept


def first_merge_last(tokenizer: dict[str, Any]) -> None:
    """Exchange the first merge and the last."""
    merges = tokenizer["model"]["merges"]
    merges[0], merges[-1] = merges[-1], merges[0]


def end_of_turn_eats_space(tokenizer: dict[str, Any]) -> None:
    """Set one flag of one added token, in tokenizer.json."""
    _added(tokenizer, "<end_of_turn>")["rstrip"] = True


def end_of_turn_eats_space_too(settings: dict[str, Any]) -> None:
    """The same in tokenizer_config.json, which has the last word."""
    (token,) = [one for one in settings["added_tokens_decoder"].values() if one["content"] == "<end_of_turn>"]
    token["rstrip"] = True


def exchanged_ids(tokenizer: dict[str, Any]) -> None:
    """Exchange the ids of two words of the corpus."""
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["Ġtide"], vocabulary["Ġprime"] = vocabulary["Ġprime"], vocabulary["Ġtide"]


def exchanged_rare_ids(tokenizer: dict[str, Any]) -> None:
    """Exchange the ids of two words that the corpus has not."""
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["▁Massachusetts"], vocabulary["▁Championships"] = (
        vocabulary["▁Championships"],
        vocabulary["▁Massachusetts"],
    )


def no_dummy_prefix(tokenizer: dict[str, Any]) -> None:
    """Drop the normaliser that puts a space in front of every text."""
    normalizers = tokenizer["normalizer"]["normalizers"]
    tokenizer["normalizer"]["normalizers"] = [one for one in normalizers if one["type"] != "Prepend"]


def prefix_space(settings: dict[str, Any]) -> None:
    """Put a space in front of every text."""
    settings["add_prefix_space"] = True


def canonical_forms_only(tokenizer: dict[str, Any]) -> None:
    """Compose, but fold no compatibility forms any more."""
    assert tokenizer["normalizer"] == {"type": "NFKC"}
    tokenizer["normalizer"] = {"type": "NFC"}


def digits_in_pairs(tokenizer: dict[str, Any]) -> None:
    """Split runs of digits after two, not after three."""
    digits = tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    assert digits == {"Regex": "\\p{N}{1,3}"}
    digits["Regex"] = "\\p{N}{1,2}"


def _added(tokenizer: dict[str, Any], content: str) -> dict[str, Any]:
    (token,) = [one for one in tokenizer["added_tokens"] if one["content"] == content]
    found: dict[str, Any] = token
    return found
