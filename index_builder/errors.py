"""What can keep a bundle from being built, or methods from being compared.

BuildError          the run's parts do not belong together, or hold what no index can serve
├── CheckFailed     the bundle was made, but is not good enough to publish
└── ContestantError a method that is compared could not be trained or tuned
"""


class BuildError(Exception):
    """A mistake the user can mend; its message says where, what was expected, what was found, what to do."""

    exit_status = 2


class CheckFailed(BuildError):  # noqa: N818 - the check failed, the builder did not
    exit_status = 1


class ContestantError(BuildError):
    exit_status = 1
