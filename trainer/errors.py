"""What can be wrong with what a user hands the trainer.

TrainerError
├── DatasetError      a dataset folder breaks its contract
├── EncoderError      an encoder cannot be found, trusted or run
├── TrainingError     a training cannot begin, go on or come to a good end
└── MemoryFolderError a run folder holds what it should not, or lacks what it should hold
"""


class TrainerError(Exception):
    """A mistake the user can mend; its message says where, what was expected, what was found, what to do."""

    exit_status = 2


class DatasetError(TrainerError):
    pass


class EncoderError(TrainerError):
    pass


class TrainingError(TrainerError):
    pass


class MemoryFolderError(TrainerError):
    pass
