"""Errors of the trainer: mistakes in the input that the user can correct.

TrainerError
├── DatasetError      a dataset folder is not in the documented format
├── EncoderError      an encoder cannot be found, trusted or run
├── TrainingError     a training cannot start, continue or end correctly
└── MemoryFolderError a run folder contains unexpected files, or lacks expected files
"""

from recollect.core.errors import RecollectError


class TrainerError(RecollectError):
    pass


class DatasetError(TrainerError):
    pass


class EncoderError(TrainerError):
    pass


class TrainingError(TrainerError):
    pass


class MemoryFolderError(TrainerError):
    pass
