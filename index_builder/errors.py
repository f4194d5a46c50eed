"""Errors of the index builder.

BuildError          a run, an index or a comparison is invalid
├── NothingToRank   a memory has too few texts for a ranker
├── CheckFailed     the bundle was built, but is not good enough to publish
└── ContestantError a contestant of a comparison could not be trained or tuned
"""

from recollect.core.errors import RecollectError


class BuildError(RecollectError):
    pass


class NothingToRank(BuildError):  # noqa: N818 - a property of the data, not an error of the program
    pass


class CheckFailed(BuildError):  # noqa: N818 - a failed check is a result, not an error of the program
    exit_status = 1


class ContestantError(BuildError):
    exit_status = 1
