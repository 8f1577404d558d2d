"""What a member has to do: taken once, given back once, whatever the order of the ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.proxy.decide.load import PENDING_WEIGHT, REQUEST_TOKENS, Load, Share


@given(st.data())
def test_everything_taken_is_given_back_after_every_kind_of_end(data):
    load = Load()
    open_shares: list[Share] = []
    for _ in range(data.draw(st.integers(0, 40))):
        step = data.draw(
            st.sampled_from(["take", "first byte", "end", "end twice", "first byte after the end"])
        )
        if step == "take" or not open_shares:
            open_shares.append(load.take(data.draw(st.integers(0, 100_000))))
            continue
        share = data.draw(st.sampled_from(open_shares))
        if step == "first byte":
            share.first_byte()
            share.first_byte()
        else:
            share.end()
            if step == "end twice":
                share.end()
            elif step == "first byte after the end":
                share.first_byte()
            open_shares.remove(share)
        assert load.running == len(open_shares)
        assert load.pending == sum(share.pending for share in open_shares)
        assert load.burden == PENDING_WEIGHT * load.pending + REQUEST_TOKENS * load.running
    for share in open_shares:
        share.end()
    assert (load.running, load.pending, load.burden) == (0, 0, 0.0)


def test_requests_of_others_are_a_burden_too():
    load = Load()
    load.take(1000)
    load.elsewhere, load.outside = 2, 3
    load.reckon()
    assert load.total == 6
    assert load.burden == PENDING_WEIGHT * 1000 + REQUEST_TOKENS * 6
