"""A digest of a dataset's contents, so that a resumed run can tell that its data has changed."""

import hashlib

import numpy as np

from mbrl.types import Dataset

BLOCK = 1 << 16  # rows that are in memory together, where the dataset is mapped


def fingerprint(dataset: Dataset) -> str:
    """SHA-256 of every array of the transitions, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    data = dataset.transitions
    for name in data.__dataclass_fields__:
        value = getattr(data, name)
        if value is not None:
            array = value.detach().cpu().numpy()
            digest.update(f"{name}{array.dtype}{array.shape}".encode())
            for begin in range(0, len(array), BLOCK):
                part = np.ascontiguousarray(array[begin : begin + BLOCK])
                digest.update(memoryview(part).cast("B"))
    return digest.hexdigest()
