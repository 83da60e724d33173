"""The choice of a model by a server's preferences."""

import pytest

from mcp_trio import types as t
from mcp_trio.hosts import ModelTraits, choose_model

MODELS = {
    "harbour-large-2": ModelTraits(cheapness=0.1, speed=0.3, intelligence=1),
    "harbour-small-2": ModelTraits(cheapness=0.9, speed=0.9, intelligence=0.3),
    "quay-1": ModelTraits(cheapness=0.5, speed=0.5, intelligence=0.5, stands_for=["gull-pro"]),
}


def preferring(*hints, **priorities):
    return t.ModelPreferences(hints=[t.ModelHint(name=hint) for hint in hints], **priorities)


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        (preferring("quay"), "quay-1"),
        (preferring("small", "large"), "harbour-small-2"),
        (preferring("unheard-of", "large", "small"), "harbour-large-2"),
        (preferring(None, "", "small"), "harbour-small-2"),
    ],
)
@pytest.mark.requirement("SAMP-13")
def test_the_first_hint_contained_in_a_name_decides(preferences, chosen):
    assert choose_model(MODELS, preferences) == chosen


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        (preferring("large", cost_priority=1, speed_priority=1), "harbour-large-2"),
        (preferring("harbour", cost_priority=1), "harbour-small-2"),
        (preferring("harbour", intelligence_priority=1), "harbour-large-2"),
        (preferring("unheard-of", speed_priority=1), "harbour-small-2"),
        (preferring(cost_priority=0.2, intelligence_priority=0.9), "harbour-large-2"),
    ],
)
@pytest.mark.requirement("SAMP-14")
def test_hints_come_before_the_priorities(preferences, chosen):
    assert choose_model(MODELS, preferences) == chosen


@pytest.mark.requirement("SAMP-15")
def test_a_hint_may_name_the_model_of_another_provider():
    assert choose_model(MODELS, preferring("gull")) == "quay-1"


@pytest.mark.parametrize("preferences", [None, t.ModelPreferences(), preferring("unheard-of")])
def test_without_preferences_the_first_model_is_chosen(preferences):
    assert choose_model(MODELS, preferences) == "harbour-large-2"


def test_without_models_an_error_is_raised():
    with pytest.raises(ValueError, match="no models"):
        choose_model({}, None)
