"""The bounds of a site's policy on a run's settings; app/config/privacy.py has those on what is shared."""

from .node_config import Refusal
from .schema import Config, Privacy


def check_bounds(config: Config, encodes: bool) -> None:
    """Refuse a run whose settings are beyond the site's policy. Raises Refusal, which names the key and the bound.

    config: with the policy that holds at the site. encodes: whether its data are images, which the run's encoder sees.
    """
    chosen, own, privacy = config.encoder, config.personal, config.privacy
    if encodes and privacy.encoders is not None and chosen.name not in privacy.encoders:
        allowed = ", ".join(privacy.encoders) or "none"
        raise Refusal(
            f"encoder={chosen.name}: the site's policy allows {allowed}: choose one of these, or have its "
            f"administrator add {chosen.name} to encoders in the policy file"
        )
    most = (
        ("training.epochs", config.training.epochs, privacy.max_epochs, "max_epochs"),
        ("personal.epochs", 0 if own.mode == "none" else own.epochs, privacy.max_epochs, "max_epochs"),
        ("federation.rounds", config.federation.rounds, privacy.max_rounds, "max_rounds"),
        ("encoder.size", chosen.settings.get("size", 0), privacy.max_size, "max_size"),
    )
    for key, value, bound, name in most:
        if bound is not None and value > bound:
            raise beyond(key, value, "most", bound, name)
    if config.training.batch_size < privacy.min_batch:
        raise beyond("training.batch_size", config.training.batch_size, "least", privacy.min_batch, "min_batch")
    if privacy.releases is not None and config.federation.fraction < 1:
        raise Refusal(f"federation.fraction={config.federation.fraction:g}: a site trains on all its samples: set 1")


def check_hidden(units: int, privacy: Privacy, *, settable: bool) -> None:
    """Refuse a model of more hidden units than the site's policy allows. Raises Refusal, which says what to set where.

    settable: whether ``model.hidden`` says how many there are.
    """
    if (bound := privacy.max_hidden) is not None and units > bound:
        own = f"set model.hidden={bound}, or " if settable else ""
        raise Refusal(
            f"the model has {units} hidden units: the site's policy allows {bound} at most: {own}have its "
            f"administrator set max_hidden: {units} in the policy file"
        )


def check_lacking(lacking: int, privacy: Privacy) -> None:
    """Refuse to train for more classes that the site does not speak of than it allows hidden units. Raises Refusal.

    The outputs of such a class, as hidden units, are moved by those samples alone that the weights let through.
    """
    if (bound := privacy.max_hidden) is not None and lacking > bound:
        raise Refusal(
            f"the run has {lacking} classes of which the site has too few samples or none: its policy allows {bound} "
            f"at most, as hidden units: have its administrator set max_hidden: {lacking} in the policy file"
        )


def beyond(key: str, value: float, end: str, bound: int, name: str) -> Refusal:
    """What a run is told whose setting lies beyond a bound. end: of what is allowed, 'most' or 'least'."""
    return Refusal(
        f"{key}={value}: the site's policy allows {bound} at {end}: set {key}={bound}, or have its administrator set "
        f"{name}: {value} in the policy file"
    )
