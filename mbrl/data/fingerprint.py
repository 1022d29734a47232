"""A digest of a dataset's contents, so that a resumed run can tell that its data has changed."""

import hashlib

from mbrl.types import Dataset, Transitions


def fingerprint(dataset: Dataset) -> str:
    """SHA-256 of every array of the transitions, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    data = dataset.transitions
    for name in Transitions.__dataclass_fields__:
        value = getattr(data, name)
        if value is not None:
            array = value.detach().cpu().contiguous().numpy()
            digest.update(f"{name}{array.dtype}{array.shape}".encode())
            digest.update(memoryview(array).cast("B"))
    return digest.hexdigest()
