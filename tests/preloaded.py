"""Import all packages of Recollect and the libraries that they import late, for the programs of `tests.forked`."""

import gc
import importlib
import os
import pkgutil
import tempfile

import recollect

os.environ["HF_HUB_OFFLINE"] = "1"  # huggingface_hub reads it when it is imported, and would repeat requests for 46 s

_LATER = (
    "torch.onnx._internal.exporter._core",
    "torch.utils.tensorboard",
    "transformers.models.bert.modeling_bert",
    "uvicorn.protocols.http.httptools_impl",
)
for name in [*_LATER, *(module.name for module in pkgutil.walk_packages(recollect.__path__, "recollect."))]:
    if not name.endswith("__main__"):
        importlib.import_module(name)
tempfile.tempdir = None  # torch has looked it up, but each forked program has its own TMPDIR
gc.freeze()  # so a collection in a forked process copies no pages
