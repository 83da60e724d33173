"""The pictures of the documentation are as the tool draws them now."""

import pictures
import pytest


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_as_it_is_drawn_now(name, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    drawn = pictures.PICTURES[name]()
    assert (pictures.FOLDER / name).read_text(encoding="utf-8") == drawn
    assert len(drawn) < 60_000
    assert "url(http" not in drawn  # no font is fetched from elsewhere
