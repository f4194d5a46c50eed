"""The web pages of the service: the playground at `/`, and the description of the HTTP API at `/docs`."""
