from wardround.privacy.order_names import order_name, start_of


def test_a_name_stands_for_all_that_is_asked_and_shows_where_it_starts():
    first = order_name(b"round 1", b"weights")
    assert first == order_name(b"round 1", b"weights")
    assert len({first, order_name(b"round 2", b"weights"), order_name(b"round 1", b"other")}) == 3
    assert start_of(first) == start_of(order_name(b"round 2", b"weights"))
    assert start_of(first) != start_of(order_name(b"round 1", b"other"))
    assert len(first) <= 128  # what a steward takes


def test_what_is_asked_and_the_weights_cannot_be_pushed_into_each_other():
    assert order_name(b"ab", b"c") != order_name(b"a", b"bc")


def test_a_name_without_a_start_is_one_as_a_whole():
    assert start_of("anything") == "anything"
