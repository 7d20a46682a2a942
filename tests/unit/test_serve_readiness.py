"""How long a loading server may be silent, on a made-up clock."""

from __future__ import annotations

from offload.engine.serving.readiness import LoadWatch, Patience

GB = 10**9
PATIENCE = Patience(quiet_min_s=10, share=0.5, assumed_bytes_per_s=100e6)


def test_silence_may_last_longer_for_more_bytes() -> None:
    """1 GB at the assumed 100 MB/s: 10 + 5 s; 100 GB: 10 + 500 s. No fixed wall."""
    small, large = LoadWatch(GB, 0, PATIENCE), LoadWatch(100 * GB, 0, PATIENCE)
    assert small.is_hung(15.1) and not small.is_hung(14.9)
    assert large.is_hung(510.1) and not large.is_hung(509.9)


def test_silence_may_last_longer_at_a_slower_rate() -> None:
    """The measured rate replaces the assumed one, in both directions."""
    slow, fast = LoadWatch(10 * GB, 0, PATIENCE), LoadWatch(10 * GB, 0, PATIENCE)
    slow.see(100, done_bytes=GB, n_lines=1, cpu_s=0)  # 10 MB/s: 10 + 500 s
    fast.see(1, done_bytes=GB, n_lines=1, cpu_s=0)  # 1 GB/s: 10 + 5 s
    assert not slow.is_hung(100 + 509) and slow.is_hung(100 + 511)
    assert not fast.is_hung(1 + 14) and fast.is_hung(1 + 16)


def test_a_load_that_goes_on_is_never_hung() -> None:
    """Hours pass, and every minute some bytes come: there is no wall."""
    watch = LoadWatch(600 * GB, 0, PATIENCE)
    for minute in range(1, 600):
        watch.see(60.0 * minute, done_bytes=minute * GB, n_lines=3, cpu_s=0)
        assert not watch.is_hung(60.0 * minute + 59)


def test_lines_of_the_log_are_signs_of_life() -> None:
    """After the last byte the log still talks: warm-up, slots, template."""
    watch = LoadWatch(GB, 0, PATIENCE)
    watch.see(10, done_bytes=GB, n_lines=100, cpu_s=0)
    watch.see(24, done_bytes=GB, n_lines=101, cpu_s=0)
    assert not watch.is_hung(35)


def test_a_process_that_works_in_silence_may_take_ten_times_as_long() -> None:
    """Weights on their way to a card, shaders; one that sleeps is not excused."""
    busy, idle = LoadWatch(GB, 0, PATIENCE), LoadWatch(GB, 0, PATIENCE)
    for second in range(0, 150, 3):
        busy.see(second, done_bytes=0, n_lines=0, cpu_s=0.2 * second)
        idle.see(second, done_bytes=0, n_lines=0, cpu_s=0.002 * second)
        assert not busy.is_hung(second)
    assert idle.is_hung(16)
    assert busy.is_hung(151)


def test_work_that_stops_is_noticed_from_then_on() -> None:
    """A pause after a long silent work is not held against it, only a long one."""
    watch = LoadWatch(GB, 0, PATIENCE)
    for second in range(0, 100, 3):
        watch.see(second, done_bytes=0, n_lines=0, cpu_s=0.2 * second)
    watch.see(112, done_bytes=0, n_lines=0, cpu_s=0.2 * 99 + 0.02)
    assert not watch.is_hung(112)
    assert watch.is_hung(99 + 16)


def test_once_all_is_read_the_way_to_the_cards_may_be_slow() -> None:
    """A file that lay in memory was read in a second; sending it over a network takes longer."""
    watch = LoadWatch(10 * GB, 0, PATIENCE)
    watch.see(1, done_bytes=9 * GB, n_lines=0, cpu_s=0)
    assert watch.quiet_max_s() < 11
    watch.see(2, done_bytes=10 * GB, n_lines=0, cpu_s=0)
    assert watch.quiet_max_s() == 60


def test_progress_is_bounded_and_never_goes_back() -> None:
    """Pages that are given back do not undo progress; more than the file is all of it."""
    watch = LoadWatch(GB, 0, PATIENCE)
    assert watch.see(1, done_bytes=GB // 2, n_lines=0, cpu_s=0).percent == 50
    assert watch.see(2, done_bytes=GB // 4, n_lines=0, cpu_s=0).percent == 50
    last = watch.see(3, done_bytes=3 * GB, n_lines=0, cpu_s=0)
    assert (last.percent, last.done_bytes, last.elapsed_s) == (100, GB, 3)


def test_the_rate_is_that_of_the_time_in_which_bytes_came() -> None:
    """A long warm-up after the last byte does not make the disk slow."""
    watch = LoadWatch(GB, 0, PATIENCE)
    watch.see(2, done_bytes=GB, n_lines=0, cpu_s=0)
    assert watch.see(100, done_bytes=GB, n_lines=9, cpu_s=0).bytes_per_s == GB / 2


def test_a_model_without_bytes_has_no_percentage_to_divide_by() -> None:
    """Total 0 must not crash."""
    assert LoadWatch(0, 0, PATIENCE).see(1, done_bytes=5, n_lines=0, cpu_s=0).percent == 0
