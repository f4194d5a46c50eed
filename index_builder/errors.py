"""Errors of the index builder.

BuildError          a run, an index or a comparison is invalid
├── NothingToRank   a memory has too few texts for a ranker
├── CheckFailed     the bundle was built, but is not good enough to publish
└── ContestantError a contestant of a comparison could not be trained or tuned
"""


class BuildError(Exception):
    """A mistake that the user can correct.

    The message states the place, the expected value, the value that was found, and the next step.
    """

    exit_status = 2


class NothingToRank(BuildError):  # noqa: N818 - a property of the data, not an error of the program
    pass


class CheckFailed(BuildError):  # noqa: N818 - a failed check is a result, not an error of the program
    exit_status = 1


class ContestantError(BuildError):
    exit_status = 1
