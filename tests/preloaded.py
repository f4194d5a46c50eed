"""Import all packages of Recollect and the libraries that they import late, for the programs of `tests.forked`."""

import gc
import importlib
import pkgutil

import recollect

_LATER = (
    "torch.onnx._internal.exporter._core",
    "torch.utils.tensorboard",
    "transformers.models.bert.modeling_bert",
    "uvicorn.protocols.http.httptools_impl",
)
for name in [*_LATER, *(module.name for module in pkgutil.walk_packages(recollect.__path__, "recollect."))]:
    if not name.endswith("__main__"):
        importlib.import_module(name)
gc.freeze()  # so a collection in a forked process copies no pages
