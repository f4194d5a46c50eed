"""`recollect push`: uploads a run to the Hugging Face hub in one commit, with a model card and checksums."""

from __future__ import annotations

from recollect.index_builder.console import print_status
from recollect.index_builder.errors import BuildError
from recollect.index_builder.hub.address import check_repository, explain_hub_errors
from recollect.index_builder.hub.checksums import CHECKSUMS, files_to_upload, sum_files, write_checksums
from recollect.index_builder.hub.model_card import model_card
from recollect.index_builder.settings import PushSettings
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.run_folder import RunFolder

CARD = "README.md"


def push(settings: PushSettings) -> str:
    """Upload a run. The token comes from HF_TOKEN, or from the login of the hub's client.

    Returns:
        The address of the uploaded commit, or with `--dry-run` the model card.

    Raises:
        BuildError: If the training is unfinished, the evaluation cannot be read, the hub refuses the upload, or the
            repository is public without `--public`.
        MemoryFolderError, EncoderError, TrainingError: If the run cannot be read.
    """
    check_repository(settings.to, f"--to {settings.to}")
    run = settings.run
    memory = open_memory(run / "memory")
    load_checkpoint(run / "checkpoint", "cpu")
    training = RunFolder(run).training()
    if training is not None and not training["done"]:
        raise BuildError(f"{run}: expected a finished training; finish it with `recollect train --resume`")
    card = model_card(settings.to, run, memory, settings.license, settings.evaluation)
    files = files_to_upload(run)
    checksums = sum_files(files)
    size = sum(file.size for file in checksums.files.values())
    print_status(f"push: {len(checksums.files)} files, {size / 1e6:,.0f} MB, with the texts of the memory")
    if settings.dry_run:
        return card
    from huggingface_hub import CommitOperationAdd, HfApi

    files |= {CARD: card.encode(), CHECKSUMS: write_checksums(checksums)}
    operations = [CommitOperationAdd(name, content) for name, content in files.items()]
    with explain_hub_errors(f"--to {settings.to}"):
        hub = HfApi()
        hub.create_repo(settings.to, private=not settings.public, exist_ok=True)
        if not settings.public and not hub.model_info(settings.to).private:
            raise BuildError(
                f"--to {settings.to}: expected a private repository, because a run contains the texts of its memory, "
                "found a public one; make it private, or allow this with --public"
            )
        commit = hub.create_commit(settings.to, operations, commit_message="Upload a run of Recollect")
    return f"hf://{settings.to}@{commit.oid}"
