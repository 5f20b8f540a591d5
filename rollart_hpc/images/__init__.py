"""Container images of environments, kept near where they are used. Public: environments import it.

with use_image("docker.io/library/python:3.11-slim@sha256:...") as image:
    with open_sandbox(root=image.root) as sandbox:
        ...
"""

from rollart_hpc.images.image import Image
from rollart_hpc.images.use import use_image

__all__ = ["Image", "use_image"]
