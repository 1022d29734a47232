"""Logged data: `load` by name or path, readers of things in memory, `save_npz` and
`save_rows`, `check`."""

from mbrl.data.assemble import from_arrays
from mbrl.data.issues import Finding
from mbrl.data.loading import check, from_log, is_dataset_name, load
from mbrl.data.locate import data_home, local_target
from mbrl.data.logs.schema import LogSchema
from mbrl.data.readers.compact import save_npz
from mbrl.data.readers.mapped import save_rows
from mbrl.data.readers.memory import from_dataframe, from_sb3

__all__ = [
    "Finding",
    "LogSchema",
    "check",
    "data_home",
    "from_arrays",
    "from_dataframe",
    "from_log",
    "from_sb3",
    "is_dataset_name",
    "load",
    "local_target",
    "save_npz",
    "save_rows",
]
