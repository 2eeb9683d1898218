from datetime import UTC, datetime, timedelta

from django.utils import timezone

from dashboard.accounts.templatetags.numbers import (
    ago,
    duration,
    exact,
    num_bytes,
    si,
    sig3,
    write_with_margin,
)


def test_numbers_have_three_significant_digits():
    for value, text in [
        (0.81234, "0.812"),
        (12.3456, "12.3"),
        (0, "0"),
        (-0.5, "−0.5"),
        (-1e-6, "−1e-6"),
        (12345.6, "12,346"),
        (1e-6, "1e-6"),
        (0.00001234567, "1.23e-5"),
        (12_345_678, "1.23e7"),
        (0.99999, "1"),
        (999.99, "1,000"),
        (None, "–"),
        (float("nan"), "–"),
        ("many", "–"),
        (True, "–"),
    ]:
        assert sig3(value) == text, value


def test_a_value_has_the_digits_of_its_margin():
    for value, margin, text in [
        (0.6902, 0.0578, "0.69 ± 0.06"),
        (0.6902, 0.00098, "0.690 ± 0.001"),
        (-1234.5, 12, "−1,234 ± 12"),
        (0.61875, None, "0.619"),
        (0.61875, 0, "0.619"),
    ]:
        assert write_with_margin(value, margin) == text
    assert exact(0.61875) == "0.61875"


def test_counts_are_short():
    for value, text in [
        (950, "950"),
        (12_345, "12.3k"),
        (999_999, "1M"),
        (4_560_000, "4.56M"),
        (0, "0"),
    ]:
        assert si(value) == text, value


def test_sizes_have_a_unit():
    for value, text in [
        (0, "0 B"),
        (1_000, "1,000 B"),
        (1_536, "1.5 KiB"),
        (1_000 * 2**20, "1,000 MiB"),
        (2**20 - 1, "1 MiB"),
        (4 * 2**30, "4 GiB"),
    ]:
        assert num_bytes(value) == text, value


def test_durations_use_two_units_at_most():
    for value, text in [
        (0.85, "850 ms"),
        (12.34, "12.3 s"),
        (59.99, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3_840, "1 h 04 min"),
        (timedelta(days=2, hours=3, minutes=9), "2 d 3 h"),
        (None, "–"),
        (-1, "–"),
    ]:
        assert duration(value) == text, value


def test_a_time_has_its_age_and_date():
    moment = timezone.now() - timedelta(minutes=3, seconds=5)

    html = ago(moment)

    assert ">3 min ago</time>" in html
    assert f'title="{moment:%Y-%m-%d %H:%M:%S} UTC"' in html


def test_a_moment_ahead_of_the_clock_is_just_now():
    assert ">just now<" in ago(datetime.now(UTC) + timedelta(seconds=30))
