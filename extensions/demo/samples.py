"""Sample values of a shop: random, realistic, the same for the same seed. Some of them are hard for pipelines."""

import json
import random
import uuid
from datetime import UTC, date, datetime, timedelta
from typing import Any

from psycopg.types.json import Jsonb
from psycopg.types.range import Range

_FIRST = ("Ada", "Björn", "Chloé", "Dmitri", "Esra", "Fatima", "Grace", "Hiro", "Inês", "Jürgen", "Łukasz", "Zoë")
_LAST = (
    "Åkesson",
    "Brown",
    "Çelik",
    "D'Angelo",
    "Eriksen",
    "Müller",
    "Núñez",
    "O'Neil",
    "Sato",
    "Tanaka",
    "王",
    "Zając",
)
_ADJECTIVES = ("blue", "folding", "heavy", "light", "oak", "quiet", "round", "small", "steel", "warm", "woven", "green")
_NOUNS = ("bench", "bowl", "chair", "desk", "kettle", "lamp", "mirror", "rug", "shelf", "stool", "table", "vase")
_WORDS = (
    *_ADJECTIVES,
    *_NOUNS,
    "with",
    "and",
    "for",
    "made",
    "by",
    "hand",
    "from",
    "the",
    "north",
    "äöü",
    "日本",
    "naïve",
)
_TWEETS = (
    "Just got a {adjective} {noun}. No regrets.",
    "Who else would rather have a {adjective} {noun}?",
    "Selling my {noun}: {adjective}, hardly used.",
    "Day 3 without a {noun}. Send help.",
    "Made a {adjective} {noun} by hand, and it even stands.",
    "A {noun} can't be too {adjective}. Change my mind.",
    "Unpopular opinion: {adjective} is the new {noun}.",
    "Good morning to everybody with a {adjective} {noun}.",
)
# Some pipeline has misread each of these: as a null, an array, an escape, a number, the end of a line.
_AWKWARD = (
    "",
    "NULL",
    "\\N",
    "{a,b}",
    'say "hi"',
    "tab\there",
    "two\nlines",
    "back\\slash",
    "007",
    "1e5",
    "true",
    "🚚 soon",
    "a,b",
)
_COUNTRIES = ("BR", "DE", "FR", "JP", "NO", "PL", "PT", "SE", "TR", "US")
_TAGS = ("early bird", "loyal", "newcomer", "press", "vip", "wholesale")
_CATEGORIES = ("garden", "kitchen", "living room", "office", "outdoor", "sale")

_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
_YEAR_S = 365 * 24 * 3600

_TOASTED_CHARACTERS = (9_000, 40_000)
"""From just above a page to several pages: PostgreSQL stores it out of line even when compressed."""

Row = dict[str, Any]


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(_WORDS, k=count))


def names(rng: random.Random, count: int) -> list[str]:
    return rng.sample([f"{first} {last}" for first in _FIRST for last in _LAST], k=count)


def tweet(rng: random.Random) -> str:
    return rng.choice(_TWEETS).format(adjective=rng.choice(_ADJECTIVES), noun=rng.choice(_NOUNS))


def long_text(rng: random.Random) -> str:
    """Prose of more than 8 kB. A part of it is digits, which don't compress well."""
    length = rng.randint(*_TOASTED_CHARACTERS)
    digits = f"{rng.getrandbits(8 * 1024):x}"
    return (digits + " " + words(rng, length // 5))[:length]


def note(rng: random.Random) -> str | None:
    kind = rng.random()
    if kind < 0.4:
        return None
    if kind < 0.6:
        return rng.choice(_AWKWARD)
    return long_text(rng) if kind < 0.62 else words(rng, rng.randint(2, 30))


def moment(rng: random.Random) -> datetime:
    return _EPOCH + timedelta(seconds=rng.randrange(_YEAR_S), microseconds=rng.randrange(1_000_000))


def money(rng: random.Random, most: int) -> str:
    """As text: a float would be another number."""
    return f"{rng.randrange(most)}.{rng.randrange(100):02d}"


def price(rng: random.Random) -> str:
    return money(rng, 2_000)


def address(rng: random.Random) -> Jsonb:
    return Jsonb(
        {
            "name": f"{rng.choice(_FIRST)} {rng.choice(_LAST)}",
            "street": f"{words(rng, 1).title()} Street {rng.randint(1, 200)}",
            "zip": f"{rng.randrange(100_000):05d}",
            "geo": {"lat": round(rng.uniform(-90, 90), 6), "lon": round(rng.uniform(-180, 180), 6)},
        }
    )


def profile(rng: random.Random) -> Jsonb:
    """Includes a number that a double can't represent; ``_dumps`` writes it unchanged."""
    profile_json: dict[str, Any] = {
        "language": rng.choice(("de", "en", "fr", "ja")),
        "logins": rng.randrange(10_000),
        "ratio": _Number(f"{rng.random():.20f}"),
        "visits": [{"page": words(rng, 2), "ms": rng.randrange(90_000)} for _ in range(rng.randrange(4))],
        "marketing": rng.choice((None, True, False)),
    }
    if rng.random() < 0.05:
        profile_json["history"] = [words(rng, 12) for _ in range(200)]
    return Jsonb(profile_json, dumps=_dumps)


class _Number(str):
    """Digits that stay unchanged in JSON."""

    __slots__ = ()


def _dumps(value: Any) -> str:
    numbers: list[str] = []

    def marked(part: Any) -> Any:
        if isinstance(part, _Number):
            numbers.append(str(part))
            return f"\0{len(numbers) - 1}"
        return {name: marked(inner) for name, inner in part.items()} if isinstance(part, dict) else part

    text = json.dumps(marked(value))
    for index, digits in enumerate(numbers):
        text = text.replace(f'"\\u0000{index}"', digits)
    return text


def attributes(rng: random.Random) -> Jsonb:
    return Jsonb(
        {"colour": rng.choice(_ADJECTIVES), "parts": rng.randrange(40), "warranty_months": rng.choice((12, 24, None))}
    )


def new_uuid(rng: random.Random) -> uuid.UUID:
    return uuid.UUID(int=rng.getrandbits(128), version=4)


def new_sku(rng: random.Random) -> str:
    letters = "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=2))
    return f"{letters}-{rng.randrange(10**8):08d}"


def customer(rng: random.Random) -> Row:
    first, last = rng.choice(_FIRST), rng.choice(_LAST)
    return {
        "id": new_uuid(rng),
        "email": f"{words(rng, 1)}.{rng.randrange(10**6)}@example.com",
        "name": f"{first} {last}",
        "country": rng.choice(_COUNTRIES),
        "tags": rng.sample(_TAGS, k=rng.randrange(4)),
        "profile": profile(rng),
        "newsletter": rng.random() < 0.5,
        "credit": money(rng, 10_000_000) if rng.random() < 0.3 else "0",
        "birthday": date(rng.randint(1930, 2006), rng.randint(1, 12), rng.randint(1, 28))
        if rng.random() < 0.7
        else None,
        "created_at": moment(rng),
    }


def product(rng: random.Random) -> Row:
    return {
        "sku": new_sku(rng),
        "title": f"{rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}",
        "description": long_text(rng) if rng.random() < 0.1 else words(rng, rng.randint(5, 80)),
        "price": price(rng),
        "weight_kg": rng.uniform(0.05, 80) if rng.random() < 0.9 else None,
        "attributes": attributes(rng),
        "categories": rng.sample(_CATEGORIES, k=rng.randrange(4)),
        "sizes": rng.choices((36, 38, 40, 42, None), k=rng.randrange(4)) if rng.random() < 0.3 else None,
        "active": rng.random() < 0.95,
        "thumbnail": rng.randbytes(rng.randrange(400)) if rng.random() < 0.2 else None,
        "available_until": rng.choice((None, "infinity", moment(rng))),
        "updated_at": moment(rng),
    }


def order(rng: random.Random, customer_id: uuid.UUID) -> Row:
    opens = rng.randrange(6, 18)
    return {
        "customer_id": customer_id,
        "status": rng.choice(("cart", "paid")),
        "note": note(rng),
        "ship_to": address(rng) if rng.random() < 0.8 else None,
        "express": rng.random() < 0.1,
        "delivery_hours": Range(opens, opens + rng.randint(1, 6)) if rng.random() < 0.3 else None,
        "placed_at": moment(rng),
    }


def item(rng: random.Random, order_id: int, line: int, sku: str) -> Row:
    return {
        "order_id": order_id,
        "line": line,
        "sku": sku,
        "quantity": rng.randint(1, 9),
        "unit_price": price(rng),
        # A third: more digits than any float has.
        "discount": rng.choice(("0", "0.10", "0.33333333333333333333333333")),
        "gift": rng.random() < 0.05,
    }
