from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from metavib.models.feature_distance import fitted_distance
from metavib.models.look import NO_MAPS, Look, Seen, embedded_with_look, fault_of_look, fitted_look, place_of
from metavib.nn.texture import texture_of
from metavib.nn.watching import Place, statistics_of
from tests.models.test_measuring_measures import built

PLACE = Place("passed", 1)


def maps(count: int = 200, shift: float = 1.0) -> dict[str, Tensor]:
    """Three sources, each moved in a direction of its own."""
    draw = torch.Generator().manual_seed(0)
    moved = shift * torch.eye(3, 6)
    return {name: torch.randn(count, 6, generator=draw) + moved[n] for n, name in enumerate("abc")}


def seen_as(by_domain: dict[str, Tensor]) -> dict[str, Seen]:
    """Images of these maps, whose texture says nothing."""
    draw = torch.Generator().manual_seed(7)
    return {name: Seen(torch.randn(len(own), 3, generator=draw), own) for name, own in by_domain.items()}


def shown(given: Tensor) -> Seen:
    return Seen(torch.zeros(len(given), 3), given)


def looks(count: int = 200) -> dict[str, Seen]:
    return seen_as(maps(count))


def test_the_threshold_is_the_geometric_mean_of_what_sources_reach() -> None:
    given = maps()
    record = fitted_look(PLACE, seen_as(given))
    assert record is not None
    product = 1.0
    for name in given:
        fit, unit = (torch.cat([own[start::2] for n, own in given.items() if n != name]) for start in (0, 1))
        distance = fitted_distance(fit, torch.zeros(len(fit), dtype=torch.long), unit)
        product *= torch.quantile(distance(given[name][1::2]), 0.95).item()
    assert record.above == pytest.approx(product ** (1 / 3), rel=1e-5)
    assert set(record.left_out) == set("abc")
    assert max(record.left_out.values()) < 0.2


def test_a_new_source_is_usual_and_other_things_are_not() -> None:
    record = fitted_look(PLACE, looks())
    assert record is not None
    look = Look(record, torch.device("cpu"))
    draw = torch.Generator().manual_seed(1)
    new = torch.randn(500, 6, generator=draw) - torch.eye(1, 6)
    assert (look(shown(new)) > 1).double().mean() < 0.15
    assert (look(shown(torch.full((5, 6), 4.0))) > 1).all()


def test_an_image_is_strange_by_its_texture_alone() -> None:
    by_texture = {name: Seen(own, None) for name, own in maps().items()}
    record = fitted_look(NO_MAPS, by_texture)
    assert record is not None
    assert record.distance is None
    look = Look(record, torch.device("cpu"))
    assert (look(Seen(torch.full((5, 6), 5.0), None)) > 1).all()
    assert (look(by_texture["a"]) > 1).double().mean() < 0.1


def test_a_record_of_version_3_looks_at_the_maps_alone() -> None:
    record = fitted_look(PLACE, looks())
    assert record is not None
    older = Look(dataclasses.replace(record, texture=None), torch.device("cpu"))
    far = Seen(torch.full((5, 3), 50.0), torch.zeros(5, 6))
    assert (Look(record, torch.device("cpu"))(far) > 1).all()
    assert (older(far) < 1).all()


def test_the_sources_own_images_look_usual() -> None:
    draw = torch.Generator().manual_seed(2)
    wide, narrow, other = (size * torch.randn(200, 4, generator=draw) for size in (5, 0.1, 0.1))
    record = fitted_look(
        PLACE, seen_as({"wide": wide, "narrow": narrow, "other": other})
    )  # whose reaches are far apart
    assert record is not None
    assert (Look(record, torch.device("cpu"))(shown(wide)) > 1).double().mean() <= 0.15


def test_few_images_or_sources_say_nothing() -> None:
    assert fitted_look(PLACE, looks(9)) is None
    assert fitted_look(PLACE, {name: own for name, own in looks().items() if name != "c"}) is None


@pytest.mark.parametrize("name", ["erm", "metavib", "d_sam"])
def test_the_network_is_watched_while_it_embeds(name: str) -> None:
    algorithm = built(name)
    images = torch.rand(4, 1, 28, 28)
    embedded, seen = embedded_with_look(algorithm, images, PLACE)
    assert torch.equal(embedded, algorithm.embed(images))
    assert seen is not None
    torch.testing.assert_close(seen.maps, statistics_of(algorithm.backbone.at_stages(images)[1]))
    torch.testing.assert_close(seen.texture, texture_of(images))
    alone = embedded_with_look(algorithm, images, NO_MAPS)[1]
    assert alone is not None
    assert alone.maps is None
    assert embedded_with_look(algorithm, images, None)[1] is None


def test_maps_that_a_network_lacks_are_a_fault() -> None:
    algorithm, images = built("erm"), torch.rand(2, 1, 28, 28)
    own = embedded_with_look(algorithm, images, PLACE)[1]
    assert own is not None
    assert own.maps is not None
    draw = torch.Generator().manual_seed(0)
    widths = own.texture.shape[1], own.maps.shape[1]
    record = fitted_look(
        PLACE, {n: Seen(*(torch.randn(20, w, generator=draw) for w in widths)) for n in "abc"}
    )
    assert record is not None
    assert place_of(record) == PLACE
    assert fault_of_look(algorithm, images, record) is None
    other = fitted_look(PLACE, looks())
    assert other is not None
    for wrong in (
        other,  # of another width
        dataclasses.replace(record, module="network.blocks.3"),
        dataclasses.replace(record, call=9),
        dataclasses.replace(record, module="connected"),  # gives no maps
    ):
        assert "maps that the network lacks" in (fault_of_look(algorithm, images, wrong) or "")
