"""The health check of the images: exit status 0 if the service in this container is ready."""

from __future__ import annotations

import os
import ssl
import urllib.request

tls = "RECOLLECT_TLS_CERT" in os.environ
# The certificate names the public host, not 127.0.0.1. The connection stays within the container.
context = ssl._create_unverified_context() if tls else None
url = f"http{'s' if tls else ''}://127.0.0.1:{os.environ['RECOLLECT_PORT']}/health/ready"
urllib.request.urlopen(url, timeout=2, context=context)
