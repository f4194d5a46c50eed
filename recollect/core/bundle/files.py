"""Names of the files of a bundle, and safe reading of its small files."""

from __future__ import annotations

import stat
from collections.abc import Collection
from pathlib import Path

from recollect.core.errors import BundleError, opening

MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"


def table_files(name: str) -> tuple[str, str]:
    """Names of the two files of a string table: the UTF-8 bytes of all strings, and the offset of each string."""
    return f"{name}.utf8.npy", f"{name}.offsets.npy"


INSTANCE_WORDS, LABEL_WORDS = "instance_words", "label_words"


def posting_files(name: str) -> tuple[str, str, str, str]:
    """Names of the files of a word index: the terms, the offsets of their postings, and rows and weights of these."""
    return f"{name}.terms.npy", f"{name}.offsets.npy", f"{name}.rows.npy", f"{name}.weights.npy"


# Files of the keys. A bundle whose keys are in Milvus does not have them.
INDEX_FILES: frozenset[str] = frozenset({"instance_keys.faiss", "label_keys.faiss"})
# The file that a bundle with a server of vectors has in place of a tokenizer.
TOKENIZER, ENCODER_SERVER = "tokenizer.json", "encoder_server.json"
# Files that a bundle has, besides its manifest and signature.
BUNDLE_FILES: frozenset[str] = INDEX_FILES | {
    "encoder.onnx",
    TOKENIZER,
    "golden.json",
    "label_counts.npy",
    "label_order.npy",
    *table_files("label_uids"),
    *table_files("label_texts"),
    "value_indptr.npy",
    "value_indices.npy",
    "voter_indptr.npy",
    "voter_indices.npy",
    *table_files("instance_uids"),
    *table_files("instance_texts"),
}


# Files of the lexical index, of the ranker, and of the fields of labels. A bundle has all files of such a part or none.
LEXICAL_FILES: frozenset[str] = frozenset({*posting_files(INSTANCE_WORDS), *posting_files(LABEL_WORDS)})
RANKER = "ranker.json"
NAME_WORDS, NAME_OFFSETS = "name_words.npy", "name_offsets.npy"
NAME_STEMS, STEM_COUNTS = "name_stems.npy", "name_stem_counts.npy"
COOCCURRENCE_FILES = ("cooccurrence.offsets.npy", "cooccurrence.labels.npy", "cooccurrence.shares.npy")
RANKER_FILES: frozenset[str] = frozenset({RANKER, NAME_WORDS, NAME_OFFSETS})
# Files from which the ranker of a bundle has further features. Rankers of older bundles have no such features.
STEM_FILES: frozenset[str] = frozenset({NAME_STEMS, STEM_COUNTS, *COOCCURRENCE_FILES})
# Files of the linear classifiers of a ranker, which not every ranker has.
CLASSIFIER_FILES = ("classifier.offsets.npy", "classifier.terms.npy", "classifier.weights.npy")
# Files of the second ranker, beside those of the ranker: its trees; and the graph of the cross-encoder in int8 with its
# tokenizer, if it is not on a server.
CROSS_RANKER, CROSS_ENCODER, CROSS_TOKENIZER = "cross_ranker.json", "cross_encoder.onnx", "cross_tokenizer.json"
CROSS_FILES: frozenset[str] = frozenset({CROSS_RANKER, CROSS_ENCODER, CROSS_TOKENIZER})
# Files of the fields of labels: those of each label, and the labels of each term.
LABEL_FIELDS, LABEL_TERMS = "label_fields", "label_terms"
TERM_OFFSETS, TERM_LABELS = "label_term_indptr.npy", "label_term_indices.npy"
FIELD_FILES: frozenset[str] = frozenset(
    {*table_files(LABEL_FIELDS), *table_files(LABEL_TERMS), TERM_OFFSETS, TERM_LABELS}
)
_OPTIONAL_PARTS = (
    LEXICAL_FILES,
    RANKER_FILES,
    STEM_FILES,
    frozenset(CLASSIFIER_FILES),
    CROSS_FILES - {CROSS_RANKER},
    frozenset({CROSS_RANKER}),
    FIELD_FILES,
)


def expected_files(present: Collection[str], with_engine: bool = False) -> frozenset[str]:
    """The files that a bundle must have: the required ones, and all of each optional part of which one is present."""
    required = BUNDLE_FILES - INDEX_FILES if with_engine else BUNDLE_FILES
    if ENCODER_SERVER in present:
        required = required - {TOKENIZER} | {ENCODER_SERVER}
    return required.union(*(part for part in _OPTIONAL_PARTS if not part.isdisjoint(present)))


def require_file(path: Path) -> None:
    """Refuse a path that is not a regular file. A symbolic link is refused too."""
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        raise BundleError(
            f"{path}: expected a file of the bundle, found: {error.strerror}; build the bundle again"
        ) from None
    if not stat.S_ISREG(mode):
        found = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise BundleError(f"{path}: expected a file of the bundle, found {found}; build the bundle again")


def read_small(path: Path, max_bytes: int) -> bytes:
    """Read a file of a bundle that may have at most `max_bytes` bytes."""
    require_file(path)
    with opening(path), path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise BundleError(f"{path}: expected at most {max_bytes:,} bytes, found more; build the bundle again")
    return content
