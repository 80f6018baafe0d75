"""What each deployment makes of a corpus: saved beside its manifest, or rendered here and now, once each."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kvgate.rules.manifest import Manifest
from kvgate.rules.progress import Progress

if TYPE_CHECKING:
    from types import TracebackType

    from kvgate.corpora.conversations.corpus import Corpus
    from kvgate.corpora.snapshots.snapshot import SnapshotFile


class Renderings:
    """Opens and makes snapshots; what is made goes when this does (a context manager)."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._scratch = tempfile.TemporaryDirectory(prefix="kvgate-")
        self._made: dict[tuple[Manifest, str], SnapshotFile | str] = {}

    def __enter__(self) -> Renderings:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scratch.cleanup()

    def diagnostic(self, manifest: Manifest, file: tuple[Path, str] | None) -> SnapshotFile | str:
        """Return the snapshot beside a manifest, or one of the diagnostic corpus made now, or why there is none.

        Args:
            manifest: a deployment.
            file: its snapshot and the ``sha256:...`` it must have; ``None``: it names none.

        Raises:
            InputError: the snapshot is exchanged or malformed, or files of the tokenizer are hostile.
        """
        if file is not None:
            from kvgate.corpora.snapshots.snapshot import open_snapshot

            return open_snapshot(*file)
        from kvgate.corpora.conversations.corpus import load_corpus

        return self.of(manifest, load_corpus("diagnostic"))

    def of(self, manifest: Manifest, corpus: Corpus) -> SnapshotFile | str:
        """Return what the libraries installed here make of a corpus with a deployment's tokenizer, or why they cannot.

        Raises:
            InputError: files of the tokenizer are malformed or hostile.
        """
        key = (manifest, corpus.digest)
        if key not in self._made:
            self._made[key] = self._render(manifest, corpus)
        return self._made[key]

    def _render(self, manifest: Manifest, corpus: Corpus) -> SnapshotFile | str:
        folder = manifest.value("tokenizer.path")
        if folder is None or not Path(folder).is_dir():
            return f"{manifest.source}: no snapshot, and no tokenizer files at hand"
        from kvgate.corpora.examine import examine

        facts, snapshot = examine(
            Path(folder),
            corpus=corpus,
            options=manifest.value("tokenizer.options") or {},
            snapshot_to=Path(self._scratch.name) / str(len(self._made)),
            progress=self._progress,
        )
        template = None if facts.template is None else facts.template.digest
        if template != manifest.value("chat_template.digest"):
            return f"{manifest.source}: the chat template in {folder} is not the one that was captured"
        if facts.effective != manifest.value("tokenizer.effective"):
            versions = " and ".join(f"{name} {version}" for name, version in sorted(facts.renderer.items()))
            return f"{manifest.source}: {versions} build another tokenizer from {folder} than the one that was captured"
        if snapshot is None:
            return f"{manifest.source}: no tokenizer can be built from {folder} here"
        return snapshot
