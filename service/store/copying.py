"""Copy a published version to another store. Every file is verified in both stores."""

from __future__ import annotations

from recollect.service.errors import StoreError
from recollect.service.store.store import Store


def copy_version(source: Store, version: str, target: Store) -> bool:
    """Copy a published version; return False if the target already contains the same bundle.

    The version appears in the target after all files are complete and verified. A copy that was interrupted leaves no
    version, and can be started again.

    Raises:
        StoreError: If the source does not contain the version, its keys are in an engine, the target contains another
            bundle with this name, or a store cannot be used.
        BundleError: If a file differs from the manifest, or a bundle is not signed as the stores require.
    """
    bundle = source.open(version)
    if bundle.manifest.engine is not None:
        raise StoreError(
            f"{source.name}/bundles/{version}: expected a version with its keys in files, found one whose keys are in "
            f"Milvus, which is not copied; build it again with --store {target.name}"
        )
    try:
        existing = target.manifest(version)
    except StoreError:  # not published. If the target does not answer, the publication fails with the reason.
        target.publish_copy(bundle.folder, version)
        return True
    if existing != bundle.manifest:
        raise StoreError(
            f"{target.name}/bundles/{version}: expected a new version or an equal copy, found another bundle; "
            "a published version never changes: build the bundle again"
        )
    return False
