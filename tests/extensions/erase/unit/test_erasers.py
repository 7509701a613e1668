"""What extensions keep of a row, as ``lockstep erase`` asks for it."""

from collections.abc import Callable, Collection, Iterator

from cdc.model.errors import LockstepError
from extensions.erase.erase import close_rejections, places_of
from jobs.dead_letters.record import dead_letter_key
from lockstep.erasing import Eraser, Place


class _Keeper(Eraser):
    """Keeps rejections of a topic of its own."""

    def __init__(self, why: str | None = None) -> None:
        self.closed: list[bytes] = []
        self._why = why

    def places(self, _: Callable[[str], bool], *, only_look: bool) -> Iterator[Place]:
        yield Place("a part")
        raise LockstepError("nobody knows")

    def is_rejected(self, topic: str, key: bytes) -> bool:
        return topic == "own"

    def close_rejections(self, rejections: Collection[bytes], close: Callable[[Collection[bytes]], None]) -> str | None:
        self.closed += rejections
        return self._why


class _Silent(Eraser):
    def places(self, _: Callable[[str], bool], *, only_look: bool) -> Iterator[Place]:
        yield Place("all of it")


def test_what_an_extension_can_not_tell_is_unasked() -> None:
    found = list(places_of("extra", _Keeper(), lambda _: False, only_look=True))
    assert [(place.name, place.unasked) for place in found] == [
        ("a part", None),
        ("data of the extension extra", "nobody knows"),
    ]


def test_each_extension_closes_its_own_rejections_and_the_others_are_closed_at_once() -> None:
    keeper, closed = _Keeper("they stay"), list[bytes]()
    own, other = (dead_letter_key("search", 1, topic, b'{"id":1}', "0" * 28) for topic in ("own", "shop.public.t"))
    assert close_rejections([_Silent(), keeper], [own, other], closed.extend) == "they stay"
    assert (keeper.closed, closed) == ([own], [other])
