"""Functions without a state, as many at once as there is room for, done again where they fail: what
RollArt (arXiv 2512.22560) does with rewards on a serverless platform."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

from mbrl.distributed.cluster import connected, placed
from mbrl.errors import ConfigError


class Elastic:
    """Calls of a pure `function`, in this process or as Ray tasks of `cpus` processors each, on
    nodes with the `tag`. A call that raises, or whose process dies, is made again up to `retries`
    times. Raises `ConfigError` for an unknown kind or negative retries."""

    def __init__(
        self,
        function: Callable[..., Any],
        kind: Literal["inline", "ray"] = "inline",
        *,
        retries: int = 3,
        cpus: float = 0.1,
        tag: str | None = None,
    ) -> None:
        if kind not in ("inline", "ray") or retries < 0:
            raise ConfigError(
                f"kind is {kind!r} (inline or ray), retries {retries}, which must be 0 or more"
            )
        self.function, self.retries, self.ray = function, retries, None
        if kind == "ray":
            self.ray = connected(2, "tasks on Ray")
            options = {"num_cpus": cpus, "max_retries": retries, "retry_exceptions": True}
            self.remote = self.ray.remote(**options, **placed(self.ray, tag))(applied)

    def map(self, calls: Iterable[tuple[Any, ...]]) -> list[Any]:
        """The results of the function for these arguments, in their order. Raises `RuntimeError`
        for a call that failed however often it was made."""
        if self.ray is None:
            return [self._call(arguments) for arguments in calls]
        references = [self.remote.remote(self.function, *arguments) for arguments in calls]
        try:
            results: list[Any] = self.ray.get(references)
        except self.ray.exceptions.RayError as error:
            raise RuntimeError(f"a call failed {self.retries + 1} times: {error}") from None
        return results

    def _call(self, arguments: tuple[Any, ...]) -> Any:
        for left in range(self.retries, -1, -1):
            try:
                return self.function(*arguments)
            except Exception as error:
                if not left:
                    raise RuntimeError(
                        f"a call failed {self.retries + 1} times: {error}"
                    ) from error
        raise AssertionError


def applied(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function of the arguments: Ray's tasks are of plain functions, and callable objects are
    no such."""
    return function(*arguments)
