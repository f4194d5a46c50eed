"""Errors of the trainer: mistakes in the input that the user can correct.

TrainerError
├── DatasetError      a dataset folder is not in the documented format
├── EncoderError      an encoder cannot be found, trusted or run
├── TrainingError     a training cannot start, continue or end correctly
└── MemoryFolderError a run folder contains unexpected files, or lacks expected files
"""


class TrainerError(Exception):
    """An error that the user can correct. The message says where, what was expected, what was found, and what to do."""

    exit_status = 2


class DatasetError(TrainerError):
    pass


class EncoderError(TrainerError):
    pass


class TrainingError(TrainerError):
    pass


class MemoryFolderError(TrainerError):
    pass
