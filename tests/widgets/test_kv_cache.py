"""The paged KV cache of the widget keeps what a paged cache must keep, at every step of every pool."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets")

from hypothesis import given, settings
from hypothesis import strategies as st
from inference_planner.catalog import load_model

from workshop.course.widgets.kv_cache.case import REQUESTS, CachedRequest, reserved_tokens, simulate
from workshop.course.widgets.kv_cache.picture import picture, spoken
from workshop.course.widgets.kv_cache.view import KvCacheExplorer
from workshop.errors import BadInput

requests = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=6
)


@pytest.fixture
def growth():
    return KvCacheExplorer()


class TestScheduler:
    @settings(max_examples=60, deadline=None)
    @given(requests, st.integers(8, 24))
    def test_blocks_are_held_once_and_every_request_gets_its_tokens(self, lengths, blocks):
        queue = tuple(CachedRequest("ABCDEF"[n], *sizes) for n, sizes in enumerate(lengths))
        states = simulate(blocks, queue)
        for state in states:
            block_numbers = [block for shown in state.requests for block in shown.blocks]
            assert len(block_numbers) == len(set(block_numbers)) == state.used
            assert state.tokens == sum(shown.tokens for shown in state.requests)
            assert all(len(shown.blocks) == -(-shown.tokens // 16) for shown in state.requests)
        last = states[-1]
        assert [shown.generated for shown in last.requests] == [r.output for r in queue]
        assert all(shown.state == "finished" for shown in last.requests)
        assert last.used == 0

    def test_a_request_takes_a_block_when_its_last_one_is_full(self):
        states = simulate(8, (CachedRequest("A", 0, 15, 20),))
        assert [(s.tokens, s.used) for s in states[1:5]] == [(15, 1), (16, 1), (17, 2), (18, 2)]

    def test_the_last_to_come_is_preempted_and_computed_again(self):
        states = simulate(8, (CachedRequest("A", 0, 60, 60), CachedRequest("B", 0, 40, 40)))
        when = next(s for s in states if "preempted" in s.event)
        a, b = when.requests
        assert (a.state, b.state, b.tokens) == ("running", "preempted", 0)
        again = next(s for s in states[when.step :] if "B starts again" in s.event).requests[1]
        assert again.tokens == 40 + b.generated  # the prompt, and what it had written

    def test_the_first_pool_becomes_full(self, growth):
        assert any("preempted" in s.event for s in growth.states)
        assert any(s.used == len(s.pool) for s in growth.states)

    def test_without_paging_the_longest_length_is_held_back(self):
        state = simulate(32, (CachedRequest("A", 0, 10, 100),))[1]
        assert (state.tokens, reserved_tokens(state)) == (10, 110)

    def test_what_cannot_fit_is_refused(self):
        with pytest.raises(BadInput, match="Request D grows to 10 blocks, and the pool has 8"):
            simulate(8, REQUESTS)
        with pytest.raises(BadInput, match="blocks is 0"):
            simulate(0)


class TestView:
    def test_play_moves_the_slider(self, growth):
        growth.play.value = 12
        assert growth.step.value == 12
        assert growth.result.step == 12

    def test_bytes_are_those_of_the_model(self, growth):
        growth.step.value = 1
        growth.model.value = "llama-3.1-70b"
        # 52 + 21 tokens × 2 × 80 layers × 8 KV heads × 128 × 2 bytes (config.json) = 22.8 MiB
        assert "22.8 MiB" in growth.picture.value

    def test_a_smaller_pool_says_why_it_cannot(self, growth):
        growth.blocks.value = 8
        assert "refuses to start" in growth.picture.value
        growth.blocks.value = 24
        assert "The pool" in growth.picture.value

    def test_every_kind_of_attention_can_be_counted(self, subtests):
        for model in ["gpt2", "deepseek-v3", "jamba-v0.1", "gemma-2-9b"]:
            with subtests.test(model):
                state = simulate(24)[40]
                assert "One token" in picture(state, load_model(model))
                assert "blocks used" in spoken(state, load_model(model))

    def test_full_is_said(self, growth):
        full = next(s for s in growth.states if s.used == len(s.pool))
        growth.step.value = full.step
        assert "FULL" in growth.picture.value
