"""The health check of the images: exit status 0 if the service in this container is ready."""

from __future__ import annotations

import http.client
import os
import ssl
import sys

host = os.environ.get("RECOLLECT_HOST", "").strip("[]") or "127.0.0.1"
address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), int(os.environ.get("RECOLLECT_PORT") or 8000)
connection = http.client.HTTPConnection(*address, timeout=2)  # this class uses no proxy
if os.environ.get("RECOLLECT_TLS_CERT"):
    # The certificate names the public host, not this address. The connection stays within the container.
    connection = http.client.HTTPSConnection(*address, timeout=2, context=ssl._create_unverified_context())
try:
    connection.request("GET", "/health/ready")
    status = connection.getresponse().status
except (OSError, http.client.HTTPException) as error:
    sys.exit(f"{address}: {error}")
sys.exit(status != 200 and f"{address}: status {status}")
