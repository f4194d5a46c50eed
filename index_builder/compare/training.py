"""Training and tuning, each in a process of its own: its peak memory is its own, and its end is not ours."""

from __future__ import annotations

import codecs
import os
import re
import signal
import subprocess
import sys
from typing import IO

from index_builder.compare.contest import UNTRAINED, Run
from index_builder.compare.folder import ComparisonFolder
from index_builder.errors import ContestantError
from index_builder.settings import CompareSettings
from trainer.checkpoint import load_checkpoint

_MOST_TOLD = 4_096


def train_and_tune(run: Run, settings: CompareSettings, folder: ComparisonFolder) -> None:
    """Bring a run to a tuned memory, unless it has one; what is done of it is not done again.

    Raises:
        ContestantError: If `recollect train` or `recollect tune` fails.
    """
    path, flags = folder.run(run), run.contestant.flags
    if not folder.is_done(run, "train", flags):
        vectors = _vectors(run, settings, folder)
        going_on = folder.has_begun(run, flags)  # else what was begun otherwise makes way
        folder.note(run, "begin", flags)
        own = [f"--out={path}", f"--seed={run.seed}", "--resume" if going_on else "--overwrite", "--tune=no", *vectors]
        recollect(run.name, "train", str(settings.dataset), *own, *flags)
        folder.note(run, "train", flags)
    tuning = (f"--metric={settings.metric}", f"--propensity={','.join(map(str, settings.propensity))}")
    if not folder.is_done(run, "tune", tuning):
        recollect(run.name, "tune", str(path), *tuning)
        folder.note(run, "tune", tuning)


def _vectors(run: Run, settings: CompareSettings, folder: ComparisonFolder) -> list[str]:
    """An adapter learns from the untrained memory, unless that was made through an adapter of the encoder's own."""
    if settings.train != "adapter" or run.contestant.name == UNTRAINED:
        return []
    encoder = load_checkpoint(folder.untrained / "checkpoint", "cpu")
    return [f"--vectors={folder.untrained / 'memory'}"] if encoder.model.adapter is None else []


def recollect(who: str, verb: str, *arguments: str) -> None:
    """Run a verb in a process of its own, passing on what it tells.

    Raises:
        ContestantError: With the last that it told, if it fails.
    """
    command = [sys.executable, "-m", "recollect", verb, *arguments]
    # What is set there is among the arguments, or no contestant's.
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("RECOLLECT_")}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stderr is not None
        try:
            told = _pass_on(process.stderr)
            status = process.wait()
        except BaseException:  # interrupted: no training goes on behind our back
            process.terminate()
            raise
    if status == 0:
        return
    if status < 0:
        told = f"`recollect {verb}` was ended by {signal.Signals(-status).name}, as where memory runs out"
    reason = told.removeprefix(f"recollect {verb}: ")
    raise ContestantError(f"{who}: {reason} (what is done stays; mend this, and run the same command again)")


def _pass_on(stream: IO[bytes]) -> str:
    """Copy a process's standard error to ours as it comes; gives its last line."""
    decoder, tail = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while chunk := stream.read1(_MOST_TOLD):  # type: ignore[attr-defined]
        text = decoder.decode(chunk)
        sys.stderr.write(text)
        sys.stderr.flush()
        tail = (tail + text)[-_MOST_TOLD:]
    lines = [line.strip() for line in re.split(r"[\r\n]", tail)]
    return next((line for line in reversed(lines) if line), "it told nothing")
