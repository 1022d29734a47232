"""Classification sets of the UCI repository as arrays: the files of UCI itself, or those that the
PyPI package scikit-learn bundles (which need not be installed: its wheel can be unpacked)."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from mbrl.data.locate import data_home
from mbrl.errors import MissingDataError, unknown_name

# name -> (folder, file, column of the label)
SETS = {
    "digits": ("sklearn", "digits.csv.gz", -1),
    "breast-cancer": ("sklearn", "breast_cancer.csv", -1),
    "wine": ("sklearn", "wine_data.csv", -1),
    "iris": ("sklearn", "iris.csv", -1),
    "ecoli": ("uci-bandit", "ecoli.data", -1),
    "pendigits": ("uci-bandit", "pendigits.data", -1),
    "satimage": ("uci-bandit", "satimage.data", -1),
    "letter": ("uci-bandit", "letter-recognition.data", 0),
}


def read(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Standardised features [N, D] and labels [N] of 0..K-1, in the order of the file. Raises
    `MissingDataError` with where the file belongs."""
    if name not in SETS:
        raise unknown_name("classification set", name, SETS)
    folder, file, column = SETS[name]
    path = _path(folder, file)
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    rows = [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]
    if folder == "sklearn" and file.endswith(".csv"):
        rows = rows[1:]  # counts and names
    labels = np.array([row[column] for row in rows])
    numbers = [row[1:] if column == 0 else row[:-1] for row in rows]
    if name == "ecoli":  # begins with the protein's name
        numbers = [row[1:] for row in numbers]
    features = np.array(numbers, dtype=np.float64)
    deviation = features.std(0)
    features = (features - features.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    return features, np.unique(labels, return_inverse=True)[1]


def _path(folder: str, file: str) -> Path:
    places = [data_home() / folder / file]
    if folder == "sklearn":
        installed = importlib.util.find_spec("sklearn")
        if installed is not None and installed.origin is not None:
            places.append(Path(installed.origin).parent / "datasets/data" / file)
    for place in places:
        if place.is_file():
            return place
    how = (
        "copy it from sklearn/datasets/data of the wheel that `pip download --no-deps "
        "scikit-learn` fetches"
        if folder == "sklearn"
        else "fetch it from archive.ics.uci.edu"
    )
    raise MissingDataError(f"{places[0]} is not here: {how}")
