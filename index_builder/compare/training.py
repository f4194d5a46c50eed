"""Training, tuning and ranking of the runs of a comparison.

`recollect train` and `recollect tune` run in separate processes, so that the peak memory of each run can be measured
alone, and a crash does not end the comparison.
"""

from __future__ import annotations

import codecs
import os
import re
import signal
import subprocess
import sys
from typing import IO

from recollect.index_builder.compare.folder import ComparisonFolder
from recollect.index_builder.compare.plan import UNTRAINED, Run
from recollect.index_builder.errors import ContestantError
from recollect.index_builder.settings import CompareSettings
from recollect.trainer.encoding.checkpoint import load_checkpoint

_READ_BYTES = 4_096


def train_and_tune(run: Run, settings: CompareSettings, folder: ComparisonFolder) -> None:
    """Train and tune a run. Skip a step that is already done.

    Raises:
        ContestantError: If `recollect train` or `recollect tune` fails.
    """
    path, flags = folder.run(run), run.contestant.flags
    if not folder.is_done(run, "train", flags):
        vectors = _vectors_flag(run, settings, folder)
        resume = folder.has_begun(run, flags)  # otherwise overwrite a training that began with other flags
        folder.record(run, "begin", flags)
        own = [f"--out={path}", f"--seed={run.seed}", "--resume" if resume else "--overwrite", "--tune=no", *vectors]
        run_recollect(run.name, "train", str(settings.dataset), *own, *flags)
        folder.record(run, "train", flags)
    propensity = ",".join(map(str, settings.propensity))
    tuning = (f"--metric={settings.metric}", f"--propensity={propensity}", f"--rank={settings.rank}")
    if not folder.is_done(run, "tune", tuning):
        run_recollect(run.name, "tune", str(path), *tuning)
        folder.record(run, "tune", tuning)


def _vectors_flag(run: Run, settings: CompareSettings, folder: ComparisonFolder) -> list[str]:
    """The flag that trains an adapter on the vectors of the untrained memory, so that no text is encoded again.

    The list is empty if the run trains no adapter, or if the encoder already contains an adapter.
    """
    if settings.trained != "adapter" or run.contestant.name == UNTRAINED:
        return []
    encoder = load_checkpoint(folder.untrained / "checkpoint", "cpu")
    return [f"--vectors={folder.untrained / 'memory'}"] if encoder.model.adapter is None else []


def run_recollect(run_name: str, verb: str, *arguments: str) -> None:
    """Run a verb of `recollect` in a new process and copy its standard error to ours.

    Raises:
        ContestantError: If the process fails; the message holds the last line of its standard error.
    """
    command = [sys.executable, "-m", "recollect", verb, *arguments]
    # Environment variables are removed: they would change every contestant, and the report would not show it.
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("RECOLLECT_")}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stderr is not None
        try:
            last_line = _copy_to_stderr(process.stderr)
            status = process.wait()
        except BaseException:  # after Ctrl-C, the process of the training must end too
            process.terminate()
            raise
    if status == 0:
        return
    if status < 0:
        last_line = f"`recollect {verb}` was killed by {signal.Signals(-status).name}; memory may have run out"
    reason = last_line.removeprefix(f"recollect {verb}: ")
    raise ContestantError(f"{run_name}: {reason} (finished steps are kept; fix the cause and run the command again)")


def _copy_to_stderr(stream: IO[bytes]) -> str:
    """Copy a stream to standard error as it arrives, and return its last line."""
    decoder, tail = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while chunk := stream.read1(_READ_BYTES):  # type: ignore[attr-defined]
        text = decoder.decode(chunk)
        sys.stderr.write(text)
        sys.stderr.flush()
        tail = (tail + text)[-_READ_BYTES:]
    lines = [line.strip() for line in re.split(r"[\r\n]", tail)]
    return next((line for line in reversed(lines) if line), "it printed no message")
