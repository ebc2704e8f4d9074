"""Records in from other projects' files, and out to them: Minari data sets, TorchRL dumps, `.npz`, HDF5, Parquet.

    import_minari(rb, "D4RL/door/human-v2")
    export_parquet(rb, "door.parquet")

Each goes through the library of the format's own project, imported where it is used. docs/transfer.md says what is read and
what is not.
"""

from redis_replay.transfer._errors import MissingExtraError, TransferError
from redis_replay.transfer._flow import Chunk, Progress, Source, fill
from redis_replay.transfer._hdf5 import Hdf5Source, import_hdf5
from redis_replay.transfer._minari import MinariSource, import_minari
from redis_replay.transfer._npz import NpzSource, import_npz
from redis_replay.transfer._parquet import export_parquet
from redis_replay.transfer._to_minari import export_minari
from redis_replay.transfer._torchrl import TorchRLSource, import_torchrl

__all__ = [
    "Chunk",
    "Hdf5Source",
    "MinariSource",
    "MissingExtraError",
    "NpzSource",
    "Progress",
    "Source",
    "TorchRLSource",
    "TransferError",
    "export_minari",
    "export_parquet",
    "fill",
    "import_hdf5",
    "import_minari",
    "import_npz",
    "import_torchrl",
]
