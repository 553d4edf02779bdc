"""The bounds of a site's policy on a run's settings; app/config/privacy.py has those on what is shared."""

from .node_config import Refusal
from .schema import Config, Privacy


def check_bounds(config: Config, encodes: bool) -> None:
    """Refuse a run whose settings are beyond the site's policy. Raises Refusal, which names the key and the bound.

    config: with the policy that holds at the site. encodes: whether its data are images, which the run's encoder sees.
    """
    chosen, privacy = config.encoder, config.privacy
    if encodes and privacy.encoders is not None and chosen.name not in privacy.encoders:
        allowed = ", ".join(privacy.encoders) or "none"
        raise Refusal(
            f"encoder={chosen.name}: the site's policy allows {allowed}; its administrator may add it to encoders in "
            "the policy file"
        )
    most = (
        ("training.epochs", config.training.epochs, privacy.max_epochs, "max_epochs"),
        ("federation.rounds", config.federation.rounds, privacy.max_rounds, "max_rounds"),
        ("encoder.size", chosen.settings.get("size", 0), privacy.max_size, "max_size"),
    )
    for key, value, bound, name in most:
        if bound is not None and value > bound:
            raise beyond(f"{key}={value}", "most", bound, name)
    if config.training.batch_size < privacy.min_batch:
        raise beyond(f"training.batch_size={config.training.batch_size}", "least", privacy.min_batch, "min_batch")
    if privacy.releases is not None and config.federation.fraction < 1:
        raise Refusal(f"federation.fraction={config.federation.fraction:g}: a site trains on all its samples: set 1")


def check_hidden(units: int, privacy: Privacy) -> None:
    """Refuse a model of more hidden units than the site's policy allows. Raises Refusal."""
    if privacy.max_hidden is not None and units > privacy.max_hidden:
        raise beyond(f"the model has {units} hidden units (model.hidden)", "most", privacy.max_hidden, "max_hidden")


def beyond(found: str, end: str, bound: int, name: str) -> Refusal:
    """What a run is told whose setting lies beyond a bound. end: of what is allowed, 'most' or 'least'."""
    return Refusal(
        f"{found}: the site's policy allows {bound} at {end}; its administrator may change {name} in the policy file"
    )
