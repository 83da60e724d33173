"""Which of a host's models a server's preferences speak for."""

from collections.abc import Mapping, Sequence

import attrs

from mcp_trio._schema import ModelHint, ModelPreferences


@attrs.frozen(kw_only=True)
class ModelTraits:
    """What a model is like, each from 0 (least) to 1 (most).

    Attributes:
        cheapness: How little it costs.
        speed: How fast it answers.
        intelligence: How much it can do.
        stands_for: Models of other providers that it may be taken for.
    """

    cheapness: float = 0.5
    speed: float = 0.5
    intelligence: float = 0.5
    stands_for: Sequence[str] = ()


def choose_model(models: Mapping[str, ModelTraits], preferences: ModelPreferences | None) -> str:
    """The name of the model that fits a request for sampling best; for `sampling` callbacks.

    The first hint that is a part of a model's name, or of one that it stands for, leaves only such
    models (SAMP-13); among them, or among all when no hint fits, the priorities decide (SAMP-14),
    and then the order of `models`.

    Raises:
        ValueError: There are no models.
    """
    preferences = preferences or ModelPreferences()
    candidates = _hinted(models, preferences.hints or []) or list(models)
    if not candidates:
        raise ValueError("there are no models to choose from")
    return max(candidates, key=lambda name: _worth(models[name], preferences))


def _hinted(models: Mapping[str, ModelTraits], hints: Sequence[ModelHint]) -> list[str]:
    for part in [hint.name for hint in hints if hint.name]:
        fitting = [
            name
            for name, traits in models.items()
            if any(part in known for known in (name, *traits.stands_for))
        ]
        if fitting:
            return fitting
    return []


def _worth(traits: ModelTraits, preferences: ModelPreferences) -> float:
    return (
        traits.cheapness * (preferences.cost_priority or 0)
        + traits.speed * (preferences.speed_priority or 0)
        + traits.intelligence * (preferences.intelligence_priority or 0)
    )
