"""The public name of the scikit-learn classifier, whose code is in `extras/sklearn`."""

try:
    from recollect.extras.sklearn.classifier import RecollectClassifier
except ModuleNotFoundError as error:
    missing = {
        "sklearn": "scikit-learn; pip install 'recollect-xmc[sklearn]'",
        "recollect.extras.sklearn": "the folder recollect/extras/sklearn; restore the folder",
    }
    name = (error.name or "").removesuffix(".classifier")
    if name not in missing:
        raise
    raise ImportError(f"recollect.sklearn needs {missing[name]}") from error

RecollectClassifier.__module__ = __name__  # the name that users import and read

__all__ = ["RecollectClassifier"]
