"""Types of the arguments that stand without an option's name, as `--help` writes them."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

Algorithm = Positional[Annotated[str, arg(metavar="ALGORITHM")]]
Data = Positional[Annotated[str, arg(metavar="DATA")]]
Dataset = Positional[Annotated[str, arg(metavar="DATASET")]]
Datasets = Positional[Annotated[tuple[str, ...], arg(metavar="DATASET [DATASET ...]")]]
Family = Positional[Annotated[str | None, arg(metavar="[FAMILY]")]]
Folder = Positional[Annotated[Path, arg(metavar="FOLDER")]]
FolderOrFile = Positional[Annotated[Path | None, arg(metavar="[FOLDER|FILE]")]]
Folders = Positional[Annotated[tuple[Path, ...], arg(metavar="FOLDER [FOLDER ...]")]]
ModelFolder = Positional[Annotated[str, arg(metavar="FOLDER")]]
Source = Positional[Annotated[str, arg(metavar="SOURCE")]]
Table = Positional[Annotated[str, arg(metavar="TABLE")]]
