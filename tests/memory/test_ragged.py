"""Sequences of different lengths: without their padding in the buffer, padded again when they are drawn."""

import pytest
import torch

from forgetless import Buffer
from forgetless.memory.ragged import concatenated, cut, pass_size, ragged, unpadded


def rows(ids, mask=None, labels=None):
    ids = torch.tensor(ids)
    mask = torch.ones_like(ids) if mask is None else torch.tensor(mask)
    y = ids.masked_fill(mask == 0, -100) if labels is None else torch.tensor(labels)
    return {"x.input_ids": ids, "x.attention_mask": mask, "y": y}


def lists(columns):
    return {name: column.tolist() for name, column in columns.items()}


LEFT = rows([[9, 9, 5, 6], [1, 2, 3, 4]], [[0, 0, 1, 1], [1, 1, 1, 1]])
RIGHT = rows([[5, 6, 0, 0], [1, 2, 3, 4]], [[1, 1, 0, 0], [1, 1, 1, 1]])


def test_padding_on_the_left_moves_to_the_right():
    assert lists(cut(unpadded(LEFT))) == lists(RIGHT)
    assert unpadded(LEFT)["lengths"].tolist() == [[2, 2, 2], [4, 4, 4]]
    assert unpadded(LEFT, pad=7)["x.input_ids"].tolist() == [[5, 6, 7, 7], [1, 2, 3, 4]]


@pytest.mark.parametrize("policy", ["reservoir", "distinct"])
def test_a_draw_is_what_was_put_in_and_as_long_as_its_longest(policy):
    buffer = Buffer(8, policy=policy, pad=63)
    buffer.add(rows([[5, 6]]))
    buffer.add(rows([[1, 2, 3, 9, 9]], [[1, 1, 1, 0, 0]]))
    buffer.add(rows([[7, 8, 9, 10]]))
    assert buffer.columns == ("x.input_ids", "x.attention_mask", "y")
    drawn = buffer.draw(3)
    order = drawn["x.input_ids"][:, 0].argsort()
    assert drawn["x.input_ids"][order].tolist() == [[1, 2, 3, 63], [5, 6, 63, 63], [7, 8, 9, 10]]
    assert drawn["x.attention_mask"][order].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert drawn["y"][order].tolist() == [[1, 2, 3, -100], [5, 6, -100, -100], [7, 8, 9, 10]]
    assert lists(buffer.held_out())["x.input_ids"] == [[5, 6]]  # the first slot alone is shorter
    assert lists(buffer.part(1, 2))["y"] == [[1, 2, 3]]


def test_repeats_are_known_in_any_padding():
    buffer = Buffer(8, policy="distinct")
    for batch in (LEFT, RIGHT, rows([[5, 6]]), rows([[5, 6, 0]])):  # the last token of the last one is 0
        buffer.add(batch)
    assert len(buffer) == 3
    assert sorted(buffer.draw(3)["x.attention_mask"].sum(1).tolist()) == [2, 3, 4]


def test_the_state_of_a_buffer_keeps_lengths():
    def fill(buffer, first, last):
        for length in range(first, last):
            buffer.add(rows([[length] * length]))

    whole, stopped, resumed = (Buffer(6, policy="distinct") for _ in range(3))
    fill(whole, 1, 20)
    fill(stopped, 1, 9)
    resumed.load_state_dict(stopped.state_dict())
    fill(resumed, 9, 20)
    assert lists(whole.draw(6)) == lists(resumed.draw(6))
    smaller = Buffer(2, policy="distinct")
    smaller.load_state_dict(whole.state_dict())
    drawn = smaller.draw(2)
    assert drawn["x.input_ids"].shape[1] == drawn["x.attention_mask"].sum(1).max()


def test_periods_and_remembered_sequences_keep_their_shares():
    buffer = Buffer(8, policy="distinct")
    buffer.add(rows([[1, i] for i in range(20)]), remembered=True)
    buffer.add(rows([[2, i, i] for i in range(20)]))
    buffer.period += 1
    buffer.add(rows([[3, i, i, i] for i in range(90)]))
    assert torch.bincount(buffer["x.input_ids"][:, 0]).tolist() in ([0, 3, 2, 3], [0, 2, 3, 3], [0, 3, 3, 2])


def test_packed_sequences_become_examples_of_their_own():
    packed = {
        "x.input_ids": torch.tensor([[1, 2, 3, 4, 5, 9, 9]]),
        "x.position_ids": torch.tensor([[0, 1, 2, 0, 1, 0, 0]]),  # the last two are padding
        "y": torch.tensor([[-100, 2, 3, -100, 5, -100, -100]]),
    }
    assert lists(cut(unpadded(packed))) == {
        "x.input_ids": [[1, 2, 3], [4, 5, 0]],
        "x.position_ids": [[0, 1, 2], [0, 1, 0]],
        "y": [[-100, 2, 3], [-100, 5, -100]],
    }
    masked = packed | {"x.attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0, 0]])}
    assert lists(cut(unpadded(masked)))["x.input_ids"] == [[1, 2, 3], [4, 5, 0]]
    alone = {name: column[:, :3] for name, column in packed.items()}
    assert lists(cut(unpadded(alone))) == lists(alone)


PACKED = {
    "x.input_ids": torch.tensor([[5, 6, 7, 8, 9]]),
    "x.position_ids": torch.tensor([[0, 1, 2, 0, 1]]),
    "y": torch.tensor([[-100, 6, 7, -100, 9]]),
}


@pytest.mark.parametrize("policy", ["reservoir", "distinct"])
def test_packed_batches_enter_a_buffer_of_masked_ones(policy):
    buffer = Buffer(8, policy=policy)
    for batch in (LEFT, PACKED, {name: LEFT[name][1:] for name in ("x.input_ids", "y")}):
        buffer.add(batch)
    assert buffer.columns == ("x.input_ids", "x.attention_mask", "y")
    drawn = buffer.draw(8)
    ids, masks = (drawn[name].tolist() for name in ("x.input_ids", "x.attention_mask"))
    sequences = dict(zip(map(tuple, ids), masks, strict=True))
    assert sequences == {
        (5, 6, 0, 0): [1, 1, 0, 0], (1, 2, 3, 4): [1, 1, 1, 1], (5, 6, 7, 0): [1, 1, 1, 0], (8, 9, 0, 0): [1, 1, 0, 0]
    }  # fmt: skip


def test_masked_batches_enter_a_buffer_of_packed_ones():
    buffer = Buffer(8)
    buffer.add(PACKED)
    buffer.add(LEFT)
    assert lists(buffer.part(0, 4)) == {
        "x.input_ids": [[5, 6, 7, 0], [8, 9, 0, 0], [5, 6, 0, 0], [1, 2, 3, 4]],
        "x.position_ids": [[0, 1, 2, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 1, 2, 3]],
        "y": [[-100, 6, 7, -100], [-100, 9, -100, -100], [5, 6, -100, -100], [1, 2, 3, 4]],
    }


def test_labels_of_a_decoder_are_not_masked_by_the_encoder():
    batch = rows([[1, 2, 9]], [[1, 1, 0]], labels=[[4, 5, 6]]) | {"x.decoder_input_ids": torch.tensor([[0, 4, 5]])}
    assert lists(cut(unpadded(batch))) == lists(batch)
    longer = batch | {"y": torch.tensor([[4, 5, 6, 7]]), "x.decoder_input_ids": torch.tensor([[0, 4, 5, 6]])}
    columns = lists(cut(unpadded(longer)))
    assert (columns["x.input_ids"], columns["y"]) == ([[1, 2]], [[4, 5, 6, 7]])


def test_only_sequences_whose_padding_is_hidden_may_grow():
    tokens, classes = torch.zeros(2, 5, dtype=torch.int64), torch.tensor([0, 1])
    assert ragged({"x": tokens, "y": tokens}) == ("x", "y")
    assert ragged({"x.input_ids": tokens, "x.attention_mask": tokens, "y": classes}) != ()
    assert ragged({"x": tokens, "y": classes}) == ()  # the network would see the padding
    assert ragged({"x": tokens.to(torch.uint8), "y": tokens}) == ()  # pixels
    assert ragged({"x": torch.rand(2, 5), "y": tokens}) == ()
    assert ragged({"x": tokens, "y": tokens, "logits": torch.rand(2, 5, 3)}) == ()
    buffer = Buffer(4)
    buffer.add({"x": tokens, "y": classes})
    with pytest.raises(ValueError, match=r"column 'x' has examples of shape \(4,\); the buffer holds shape \(5,\)"):
        buffer.add({"x": tokens[:, :4], "y": classes})


def test_concatenation_is_as_wide_as_the_widest():
    both = concatenated([rows([[1, 2]]), rows([[3, 4, 5]])], pad=8)
    assert both["x.input_ids"].tolist() == [[1, 2, 8], [3, 4, 5]]
    assert both["y"].tolist() == [[1, 2, -100], [3, 4, 5]]


def test_a_pass_takes_fewer_long_sequences():
    assert pass_size({"x": torch.rand(4, 3), "y": torch.arange(4)}, 256) == 256
    assert pass_size(rows([[1] * 512] * 2), 256) == 32
    assert pass_size(rows([[1] * 40_000] * 2), 256) == 1


def test_a_subset_of_a_buffer_keeps_lengths():
    buffer = Buffer(4, pad=9)
    buffer.add(rows([[1, 2, 0], [3, 4, 5], [6, 0, 0]], [[1, 1, 0], [1, 1, 1], [1, 0, 0]]))
    part = buffer.subset(torch.tensor([True, False, True]))
    assert sorted(map(tuple, part.draw(2)["x.input_ids"].tolist())) == [(1, 2), (6, 9)]


def test_sequences_that_wait_take_little_memory():
    """However long later sequences are, and whether the buffer was loaded in between."""
    generator = torch.Generator().manual_seed(0)
    lengths = [16, 4096, 16, 2048, 5000, 7]
    batches = [rows(torch.randint(9, (4, length), generator=generator).tolist()) for length in lengths]
    buffer, plain = Buffer(64, policy="distinct"), Buffer(64, policy="distinct")
    for batch in batches:
        buffer.add(batch)
        plain.add(batch)
        len(plain)  # writes it
        if (stage := buffer._stage) is not None:
            assert sum(column.nbytes for column in stage._rows.values()) <= 2**24
    assert lists(buffer.held_out()) == lists(plain.held_out())
    assert len(buffer) == 24


def test_the_rows_of_a_state_wait_again():
    buffer, loaded = Buffer(64, policy="distinct"), Buffer(64, policy="distinct")
    buffer.add(rows([[5, 6, 7]]))
    state = buffer.state_dict()
    state["staged"] = [unpadded(rows([[1, 2]])), unpadded(rows([[1, 2, 3, 4]]))]  # as on a GPU
    loaded.load_state_dict(state)
    assert not loaded._stage.rows()  # the second is longer than all before, so both are written
    assert sorted(loaded["x.input_ids"].tolist()) == [[1, 2, 0, 0], [1, 2, 3, 4], [5, 6, 7, 0]]
    state["staged"] = state["staged"][:1]
    loaded.load_state_dict(state)
    assert loaded._stage.rows()["x.input_ids"].tolist() == [[1, 2, 0]]
    assert len(loaded) == 2
