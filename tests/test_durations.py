import pytest

from vitrine import compose
from vitrine.durations import clock, duration_seconds, short_duration
from vitrine.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600),
        ("600s", 600),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1d2h3m4s", 93_784),
        ("90m", 5400),
        ("00:10:00", 600),
        ("26:00:00", 93_600),
        ("01:02:03:04", 93_784),
    ],
)
def test_durations_are_parsed_and_accepted_on_the_command_line(text, seconds):
    assert duration_seconds(text) == seconds
    assert compose([f"trainer.max_time={text}"]).trainer.max_time == text


@pytest.mark.parametrize(
    "text", ["600", "10:00", "ten", "10 m", "1.5h", "m", "30m1h", "00:61:00", "-10m", "0s", "00:00:00"]
)
def test_invalid_durations_are_refused_with_the_formats(text):
    with pytest.raises(ConfigError, match=rf"trainer\.max_time={text}\n.*: 10m, 600s, 1h30m, 2d, HH:MM:SS or DD"):
        compose([f"trainer.max_time={text}"])


def test_a_bare_number_is_refused_with_seconds_and_minutes_as_hints():
    with pytest.raises(ConfigError, match=r"did you mean trainer\.max_time=10s, or trainer\.max_time=10m\?"):
        compose(["trainer.max_time=10"])


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.2, "0:00:00"),
        (59.6, "0:01:00"),
        (125, "0:02:05"),
        (7_100, "1:58:20"),
        (90_000, "1 day, 1:00:00"),
        (345_600, "4 days, 0:00:00"),
    ],
)
def test_a_duration_is_shown_to_the_second(seconds, shown):
    assert clock(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0123, "12.3 ms"), (0.9994, "999 ms"), (0.9999, "1 s"), (1.874, "1.87 s"), (150, "2 minutes")],
)
def test_a_short_duration_has_three_digits(seconds, shown):
    assert short_duration(seconds) == shown
