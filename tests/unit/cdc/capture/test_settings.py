"""The sizes of Kafka transactions."""

from cdc.capture.settings import SnapshotSettings


def _sizes(settings: SnapshotSettings, times: int) -> list[tuple[int, int]]:
    sizes = []
    for _ in range(times):
        settings = settings.with_smaller_batches()
        sizes.append((settings.batch_rows, settings.batch_bytes // 1024))
    return sizes


def test_batches_become_smaller_by_half_down_to_some_that_are_never_too_many() -> None:
    settings = SnapshotSettings(batch_rows=5000, batch_bytes=3 * 1024 * 1024)
    assert _sizes(settings, 4) == [(2500, 1536), (1250, 1024), (1000, 1024), (1000, 1024)]


def test_what_is_configured_smaller_stays() -> None:
    settings = SnapshotSettings(batch_rows=7, batch_bytes=4096, workers=3)
    assert settings.with_smaller_batches() == settings
