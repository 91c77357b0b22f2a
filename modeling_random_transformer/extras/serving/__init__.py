"""An HTTP server for translation models, with the API of LibreTranslate.

    directions = load_directions(["en:de=outputs/en-de", "outputs/several"])     # or: directions of your own
    app = create_app(directions, Settings(max_characters=5000))                  # an ASGI application
    serve(app, "127.0.0.1", 5000)                                                # until SIGTERM or Ctrl-C

Requires the extra `serve`.
"""

from .api import Settings, create_app
from .directions import Direction, load_directions
from .server import serve

__all__ = ["Direction", "Settings", "create_app", "load_directions", "serve"]
