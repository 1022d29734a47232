"""The library under one name: `import longreach as lr`, then `lr.RAVL`, `lr.load`, `lr.evaluate`,
`lr.fit_many`, `lr.collect`, `lr.make`, `lr.export`. A name is imported when it is first used."""

import importlib
import importlib.util
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from algorithms import *  # noqa: F403
    from experiments.export.agent import export as export
    from experiments.recording.environment import collect as collect
    from mbrl.evaluation import evaluate as evaluate
    from mbrl.many import fit_many as fit_many
    from mbrl.tasks import make as make

    __version__: str
else:

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return metadata.version("longreach")
        if name.startswith("_") or name not in __dir__():
            raise AttributeError(f"module 'longreach' has no attribute {name!r}")
        return getattr(importlib.import_module(_OTHERS.get(name, "algorithms")), name)


_OTHERS = {  # name -> module
    "collect": "experiments.recording.environment",
    "evaluate": "mbrl.evaluation",
    "export": "experiments.export.agent",
    "fit_many": "mbrl.many",
    "make": "mbrl.tasks",
}


def __dir__() -> list[str]:
    return sorted([*importlib.import_module("algorithms").__all__, *_OTHERS, "__version__"])


def _require_own_mbrl() -> None:
    """Raise `ImportError` where `mbrl` is the package of another library: mbrl-lib has that name
    too."""
    spec = importlib.util.find_spec("mbrl")
    origin = None if spec is None else spec.origin
    if origin is None or "mbrl.errors" not in Path(origin).read_text():
        raise ImportError(
            f"longreach needs its own package `mbrl`, but finds {origin}. The library "
            "mbrl-lib installs a package of the same name: use an environment without it, or "
            "remove it with `pip uninstall mbrl` and install longreach again"
        )


_require_own_mbrl()
