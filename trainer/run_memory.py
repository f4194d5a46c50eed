"""A run: the objects that its steps share, the texts and vectors they read, and the memory they write."""

from __future__ import annotations

import dataclasses
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recollect.core.system.console import print_status
from recollect.core.system.files import save_array
from recollect.trainer.data.dataset import Dataset
from recollect.trainer.data.split import Entries, Split
from recollect.trainer.distributed import Ranks
from recollect.trainer.encoding.checkpoint import encoder_digest
from recollect.trainer.encoding.encoder import Encoder, EncodingPrecision
from recollect.trainer.encoding.precision import choose_precision
from recollect.trainer.encoding.tokens import TokenTable
from recollect.trainer.errors import MemoryFolderError
from recollect.trainer.heads.adapter import Side
from recollect.trainer.held_out import HeldOutTexts
from recollect.trainer.memory.key_sources import EncodedTexts, KeySource
from recollect.trainer.memory.memory import (
    DEFAULTS,
    KeyDtype,
    Memory,
    MemoryPlan,
    check_same_plan,
    is_complete,
    open_memory,
    saved_plan,
)
from recollect.trainer.memory.memory_writer import write_memory
from recollect.trainer.memory.reuse import ReusableKeys, find_reusable, open_earlier
from recollect.trainer.run_folder import RunFolder
from recollect.trainer.train_settings import TrainSettings


@dataclass(frozen=True)
class Run:
    """The objects that all steps of one `recollect train` share.

    Attributes:
        validated: The part of the held-out texts that chooses the checkpoint; None: all of them.
    """

    settings: TrainSettings
    dataset: Dataset
    instances: Split
    encoder: Encoder
    folder: RunFolder
    ranks: Ranks
    validated: HeldOutTexts | None = None

    def plan(self, encoder: Encoder, key_dtype: KeyDtype) -> MemoryPlan:
        return MemoryPlan.of(self.dataset.labels, self.instances, encoder, encoder_digest(encoder), key_dtype)

    def texts(self, encoder: Encoder, reusable: ReusableKeys | None = None) -> EncodedTexts:
        return EncodedTexts(encoder, self.dataset.labels, self.instances.entries, self.ranks, reusable)

    def in_fastest_precision(self, encoder: Encoder, memory: Path, reusable: ReusableKeys | None = None) -> Encoder:
        """The encoder in the precision in which it encodes the texts of a memory.

        A memory that the run has, finished or not, and the keys of --vectors keep their precision. Otherwise, see
        `choose_precision`.

        Raises:
            MemoryFolderError: If --precision asks for another precision than that of these keys.
        """
        return encoder.in_precision(
            self.ranks.compute_first(lambda: self._encoding_precision(encoder, memory, reusable))
        )

    def _encoding_precision(self, encoder: Encoder, memory: Path, reusable: ReusableKeys | None) -> EncodingPrecision:
        found = {memory: saved_plan(memory)}
        if reusable is not None:
            found[reusable.memory.folder] = reusable.memory.plan
        for folder, plan in found.items():
            if plan is None:
                continue
            if plan.precision == "bf16" and self.settings.precision == "fp32":
                raise MemoryFolderError(
                    f"--precision fp32: expected keys in this precision in {folder}, found keys in bf16; omit the "
                    "flag, or encode all texts again with --overwrite and without --vectors"
                )
            return plan.precision
        return choose_precision(encoder, self.instances.entries.texts, self.settings.precision, self.report)

    def tokens(self, side: Side, entries: Entries, max_length: int) -> TokenTable:
        """The token ids of some texts, cut after `max_length` tokens.

        With several ranks, rank 0 tokenises the texts, and the table is mapped from files: a host holds it in memory
        once.
        """
        if self.ranks.size == 1:
            return self.encoder.tokenise(entries.texts, max_length, side)
        folder = self.folder.tokens / side
        if self.ranks.first:
            table = self.encoder.tokenise(entries.texts, max_length, side)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            save_array(folder / "ids.npy", table.ids)
            save_array(folder / "starts.npy", table.starts)
        self.ranks.broadcast_object(None)  # the other ranks wait until the files are written
        empty = self.encoder.tokenise([], max_length, side)
        ids, starts = (np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in ("ids", "starts"))
        return dataclasses.replace(empty, ids=ids, starts=starts)

    def reusable(self, encoder: Encoder, plan: MemoryPlan) -> ReusableKeys | None:
        """The keys of --vectors for the texts of this dataset; None without the flag.

        Raises:
            MemoryFolderError: If the same encoder did not write them.
        """
        given = self.settings.vectors
        if given is None:
            return None
        memory = open_earlier(given, encoder, plan.encoder_sha256, plan.key_dtype)
        found = find_reusable(memory, plan, self.dataset.labels, self.instances.entries)
        self.report(
            f"--vectors {given}: {plan.keys - found.missing:,} of {plan.keys:,} texts are unchanged, "
            f"{found.missing:,} texts to encode"
        )
        return found

    def report(self, message: str) -> None:
        """Print a progress line on the first rank."""
        if self.ranks.first:
            print_status(message)

    def frozen_vectors(self, frozen: Encoder) -> Memory:
        """The frozen encoder's vectors of all texts: those of --vectors, and those that are computed now.

        If --vectors has exactly the texts of the dataset, its memory is used as it is.
        """
        plan = self.plan(frozen, "float32")
        if not self.has_intact_memory(self.folder.frozen):
            reusable = self.reusable(frozen, plan)
            frozen = self.in_fastest_precision(frozen, self.folder.frozen, reusable)
            if reusable is not None and (reusable.rows == np.arange(plan.keys)).all():
                return reusable.memory
            plan, source = self.plan(frozen, "float32"), self.texts(frozen, reusable)
            write_memory(self.folder.frozen, plan, self.dataset.labels, self.instances, source, self.ranks)
        return open_memory(self.folder.frozen)

    def write_memory(self, plan: MemoryPlan, source: KeySource) -> None:
        """Write the memory, unless the run has it."""
        memory = self.folder.memory
        if self.has_intact_memory(memory):
            self.report_existing_memory(plan)
            return
        start = time.monotonic()
        computed = write_memory(
            memory,
            plan,
            self.dataset.labels,
            self.instances,
            source,
            self.ranks,
            DEFAULTS["temperature"] if plan.encoder["normalised"] else self.settings.tau(None),
            self.dataset.flags(self.settings),
        )
        rate = computed / (time.monotonic() - start)
        self.report(f"{memory}: {plan.keys:,} keys, {computed:,} written now at {rate:,.0f} texts/s")

    def has_intact_memory(self, memory: Path) -> bool:
        """Return whether the memory is finished.

        Remove a finished memory that cannot be opened: the run then rewrites it.
        """
        if self.ranks.first and is_complete(memory):
            try:
                open_memory(memory)
            except MemoryFolderError:
                self.report(f"{memory}: damaged; writing it again")
                shutil.rmtree(memory)
        return bool(self.ranks.broadcast_object(is_complete(memory)))

    def report_existing_memory(self, plan: MemoryPlan) -> None:
        """Check a finished memory, but do not write it again: `recollect tune` may have changed its defaults.

        Raises:
            MemoryFolderError: If its plan differs.
        """
        memory = open_memory(self.folder.memory)
        check_same_plan(memory.folder, plan, memory.plan)
        alpha = memory.defaults["label_key_alpha"]
        self.report(f"{memory.folder}: already done, {plan.keys:,} keys, label_key_alpha {alpha:g}")
