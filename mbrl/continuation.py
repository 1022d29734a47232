"""A new agent that begins with the networks of an earlier one."""

from typing import Any

from mbrl.errors import ConfigError


def take_over(agent: Any, earlier: Any) -> None:
    """Give `agent` the networks of `earlier`, targets and temperature among them, and the state of
    their optimisers, by name; rates stay those of `agent`. What `agent.fresh` names stays as it is.
    An average of the policy that `earlier` lacks begins at its policy. Both must scale rewards
    alike, which is not checked here.

    Raises `ConfigError` where `earlier` lacks a network that `agent` has, or has it in another
    size.
    """
    fresh = set(getattr(agent, "fresh", ()))
    mine = {name: m for name, m in agent.modules.items() if name not in fresh}
    theirs = dict(earlier.modules)
    if "average" in mine and "actor" in theirs:
        theirs.setdefault("average", theirs["actor"])
    names = [type(a).__name__ for a in (agent, earlier)]
    missing = sorted(mine.keys() - theirs.keys())
    if missing:
        raise ConfigError(
            f"{names[0]} has networks that {names[1]} does not have ({', '.join(missing)}; it has "
            f"{', '.join(sorted(theirs))}), so it cannot go on with them"
        )
    for name, module in mine.items():
        values = theirs[name].state_dict()
        sizes = {k: tuple(v.shape) for k, v in values.items()}
        own = {k: tuple(v.shape) for k, v in module.state_dict().items()}
        if sizes != own:
            which = next(k for k in (*own, *sizes) if own.get(k) != sizes.get(k))
            raise ConfigError(
                f"the {name} of {names[1]} is of another size: {which} is {sizes.get(which)}, and "
                f"in {names[0]} {own.get(which)}; give both the same hidden, critics, layer_norm "
                "and normalise_obs"
            )
        module.load_state_dict(values)
    for name, optimiser in agent.optimisers.items():
        if name in earlier.optimisers and name not in fresh:
            state = earlier.optimisers[name].state_dict()["state"]
            groups = optimiser.state_dict()["param_groups"]
            optimiser.load_state_dict({"state": state, "param_groups": groups})
