"""Errors of the index builder.

BuildError          an invalid run, index or comparison
├── CheckFailed     the bundle was built, but is not good enough to publish
└── ContestantError a contestant of a comparison could not be trained or tuned
"""


class BuildError(Exception):
    """A mistake that the user can correct. The message says where, what was expected, what was found and what to do."""

    exit_status = 2


class CheckFailed(BuildError):  # noqa: N818 - the check failed, the builder did not
    exit_status = 1


class ContestantError(BuildError):
    exit_status = 1
