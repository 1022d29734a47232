"""The connection to Ray, which is an extra, and places on its nodes by tags."""

from typing import Any

from mbrl.errors import ConfigError, install_command


def connected(
    cpus: int, what: str = "parts of a training system on Ray", tags: dict[str, float] | None = None
) -> Any:
    """The module `ray`, connected: as it is already, else to a cluster of this machine's own with
    `cpus` and the resources `tags`, which nobody else can reach. `what` (a plural noun) needs it.
    Raises `ConfigError` where Ray is not installed."""
    try:
        import ray
    except ImportError:
        raise ConfigError(f"{what} need Ray: {install_command('ray')}") from None
    if not ray.is_initialized():
        ray.init(
            num_cpus=cpus,
            resources=tags,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",  # or every machine of the network could reach it
        )
    return ray


def placed(ray: Any, tag: str | None) -> dict[str, Any]:
    """The options that put an actor or task on a node with the resource `tag` (None: anywhere), as
    RollArt maps a phase of training to the machines that are made for it. Raises `ConfigError`
    where no node has it: Ray itself would wait for one without a word."""
    if tag is None:
        return {}
    known = ray.cluster_resources()
    if known.get(tag, 0) < 1:
        own = sorted(name for name in known if name not in BUILT_IN and ":" not in name)
        raise ConfigError(
            f"no node of the Ray cluster has the tag {tag!r}; tags there are: "
            f"{', '.join(own) or 'none'}. Start a node with ray start "
            f"--resources='{{\"{tag}\": 1}}', or leave the tag out"
        )
    # A hundredth of the resource: it says where, and does not count how many.
    return {"resources": {tag: 0.01}}


BUILT_IN = ("CPU", "GPU", "memory", "object_store_memory")
