"""`recollect build hf://user/name`: downloads a run to the cache of the hub's client, and checks it."""

from __future__ import annotations

from pathlib import Path

from recollect.index_builder.console import print_status
from recollect.index_builder.hub.address import explain_hub_errors, is_on_hub, read_address
from recollect.index_builder.hub.checksums import CHECKSUMS, check_file, read_checksums


def local_run(run: Path) -> Path:
    """The folder of a run. A run on the hub is downloaded first; files in the local cache are not downloaded again.

    All files come from the commit that the revision names at the beginning. The token comes from HF_TOKEN, or from the
    login of the hub's client.

    Args:
        run: A folder, or `hf://user/name[@revision]`.

    Raises:
        BuildError: If the address is wrong, a file is missing or damaged, or the hub does not answer.
    """
    if not is_on_hub(run):
        return run
    address = read_address(run)
    from huggingface_hub import HfApi

    with explain_hub_errors(str(address)):
        hub = HfApi()
        path = Path(hub.hf_hub_download(address.repository, CHECKSUMS, revision=address.revision))
        commit = path.parent.name  # the cache has a folder for each commit
        print_status(f"{address}: commit {commit}")
        checksums = read_checksums(path, str(address))
        for name, expected in checksums.files.items():
            file = Path(hub.hf_hub_download(address.repository, name, revision=commit))
            check_file(file, name, expected, str(address))
    return path.parent
