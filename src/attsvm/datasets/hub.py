"""Files of data sets on the Hugging Face hub, and pictures out of its tables."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from attsvm.data import IntArray
from attsvm.errors import InputError
from attsvm.extras import imported
from attsvm.files import brief, opened


def hub_file(repository: str, name: str) -> Path:
    """A file of a data set, from the hub client's cache or downloaded into it.

    Raises:
        InputError: the hub does not answer, or has no such file.
        MissingExtraError: huggingface_hub is not installed.
    """
    purpose = f"{repository} from the Hugging Face hub"
    hub = imported("huggingface_hub", purpose, "huggingface_hub", "hub")
    try:
        return Path(hub.hf_hub_download(repository, name, repo_type="dataset"))
    except Exception as error:  # the hub client and the network raise without a common family
        why = brief(str(error) or type(error).__name__)
        raise InputError(
            f"{name} of {repository} cannot be had from the hub ({why}); go online, or give a"
            " folder with its files"
        ) from None


def hub_pictures(path: Path, picture: str, label: str) -> tuple[NDArray[np.uint8], IntArray]:
    """Pixels ``(n, height, width, channels)`` and classes of a ``.parquet`` of the hub, whose
    pictures are encoded files.

    Raises:
        InputError: a damaged file, other columns, or pictures of several sizes.
        MissingExtraError: pyarrow is not installed.
    """
    parquet = imported("pyarrow.parquet", "reading .parquet files", "pyarrow", "parquet")
    try:
        with opened(path) as file:
            rows = parquet.read_table(file, columns=[picture, label]).to_pylist()
        pixels = np.stack(
            [np.asarray(Image.open(io.BytesIO(row[picture]["bytes"]))) for row in rows]
        )
        labels = np.array([row[label] for row in rows], dtype=np.int64)
    except Exception as error:  # pyarrow, Pillow and NumPy find damage in many ways
        raise InputError(
            f"{path} is not the hub's table of pictures ({brief(str(error))}); delete it and"
            " download it again"
        ) from None
    return (pixels[..., None] if pixels.ndim == 3 else pixels), labels
