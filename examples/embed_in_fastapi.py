"""Answer queries inside a FastAPI application of your own. All requests share one model.

python examples/embed_in_fastapi.py store/            # any store; then:
curl 'http://127.0.0.1:8001/products?text=garden+chair'

Use `recollect serve` instead if you need caching, batching, rate limits or swaps without lost requests.
"""

from __future__ import annotations

import argparse
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException

import recollect


def create_app(store: str) -> FastAPI:
    app = FastAPI(title="Garden shop")
    model = recollect.open(store)

    @app.get("/products")
    def products(
        text: str, top_k: int = 5
    ) -> dict[str, Any]:  # without `async`, so FastAPI runs each request on a thread
        try:
            labels = model.predict(text, top_k=top_k)
        except recollect.ERRORS as error:  # the text is empty, or top_k is out of range
            raise HTTPException(422, str(error)) from error
        return {
            "version": model.version,
            "products": [{"id": label.uid, "name": label.text, "score": label.score} for label in labels],
        }

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="bundle store: a folder, or a URL such as s3://bucket/store")
    parser.add_argument("--port", type=int, default=8001, help="port to listen on")
    arguments = parser.parse_args()
    uvicorn.run(create_app(arguments.store), port=arguments.port)


if __name__ == "__main__":
    main()
