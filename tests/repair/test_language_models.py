"""Causal language models in a plain loop: the batch that the trainer uses, and the model's own shifted loss."""

import math

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("peft", reason="peft is not installed")

import forgetless
from forgetless import FPF, Buffer
from forgetless.repair.held_out import measure
from language import PAD, adapted, batches, collate, llama, loss_on, sentence

KINDS = pytest.mark.parametrize("make", [llama, lambda: adapted(llama())], ids=["full", "lora"])
SCHEDULE = {"every": 8, "steps": 4, "groups": "all", "capacity": 32, "policy": "distinct"}


def train(model, fpf, data, lr=1e-2):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    for batch in data:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
        fpf.observe(batch)


def unpadded_loss(model, sentences):
    """Return the mean loss over all predicted tokens, one sequence at a time without padding."""
    total = count = 0.0
    for tokens in sentences:
        ids = torch.tensor([tokens])
        logits = model.eval()(input_ids=ids).logits[0, :-1]
        total += F.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        count += len(tokens) - 1
    return total / count


@KINDS
def test_the_held_out_loss_is_that_of_the_next_token(make):
    model = make()
    sentences = [sentence(0, start, 4 + start % 9) for start in range(40)]
    fpf = FPF(model, 40, policy="reservoir")
    for start in range(0, 40, 5):
        fpf.observe(collate(sentences[start : start + 5], left=start % 2 == 1))
    score = measure(model, fpf.buffer, fpf.objective)
    assert score.loss == pytest.approx(unpadded_loss(model, sentences[::8]), rel=1e-5)
    assert score.perplexity == pytest.approx(math.exp(score.loss))
    assert score.accuracy is None
    assert score.examples == 5
    assert str(score) == f"loss {score.loss:.3f}, perplexity {score.perplexity:.4g}"


def test_a_language_model_has_a_smaller_budget():
    within, scheduled, given = FPF(llama()), FPF(llama(), every=5), FPF(llama(), budget=0.2, batch=4)
    assert (within.settings.budget, within.settings.batch) == (0.05, 8)
    assert (scheduled.settings.budget, scheduled.settings.batch) == (None, 32)
    assert (given.settings.budget, given.settings.batch) == (0.2, 4)


@pytest.mark.parametrize(("examples", "limit"), [(4000, 60), (20_000, 125)])  # the budget is 200 and 1,000 examples
def test_the_last_repair_of_a_language_model_has_at_least_60_steps(examples, limit):
    upkeep = FPF(llama())._repairer
    upkeep.advance(examples)
    assert upkeep.account.limit() == limit


def test_a_step_of_a_repair_descends_the_models_own_loss():
    model, batch = llama(), collate([sentence(0, start, 5 + start) for start in range(4)])
    buffer = Buffer(4, pad=PAD)
    buffer.add({"x.input_ids": batch["input_ids"], "x.attention_mask": batch["attention_mask"], "y": batch["labels"]})
    model.train()
    own = model(**batch).loss
    (gradient,) = torch.autograd.grad(own, [model.lm_head.weight])
    expected = model.lm_head.weight.detach() - 0.1 * gradient
    done = forgetless.finetune(model, buffer, ["lm_head.weight"], steps=1, lr=0.1)
    assert done.losses[0] == pytest.approx(own.item(), rel=1e-5)
    torch.testing.assert_close(model.lm_head.weight.detach(), expected)


@pytest.mark.parametrize("wrap", [lambda model: model, adapted], ids=["full", "lora"])
def test_fpf_repairs_a_finetuned_language_model(wrap):
    base = llama()
    train(base, FPF(base), batches(0, 60))
    old = collate([sentence(0, start, 10) for start in range(0, 50, 5)])
    learned = loss_on(base, old)
    model = wrap(base)
    fpf = FPF(model, 64, budget=0.1)
    for batch in batches(0, 8):
        fpf.remember(batch)
    train(model, fpf, batches(1, 30))
    forgotten = loss_on(model, old)
    assert forgotten > learned + 0.5
    report = fpf.finish()
    assert loss_on(model, old) < (learned + forgotten) / 2
    assert report.accuracy_before is None
    assert report.perplexity_after == pytest.approx(math.exp(report.loss_after))
    assert f"perplexity {report.perplexity_before:.4g} → {report.perplexity_after:.4g}" in str(report)


@KINDS
@pytest.mark.parametrize("settings", [SCHEDULE, {"budget": 8.0, "capacity": 16, "batch": 4}], ids=["k-fpf", "budget"])
def test_a_resumed_loop_ends_with_the_same_bits(make, settings, tmp_path):
    data = [*batches(0, 10), *batches(1, 12)]

    def run(parts):
        torch.manual_seed(0)
        model = make()
        fpf = FPF(model, **settings)
        for number, part in enumerate(parts):
            if number:
                state = torch.load(tmp_path / "state.pt")
                model = make()
                model.load_state_dict(state["model"])
                fpf = FPF(model, **settings)
                fpf.load_state_dict(state["fpf"])
            # SGD has no state that would be lost between the parts.
            optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
            for batch in part:
                optimizer.zero_grad()
                model(**batch).loss.backward()
                optimizer.step()
                fpf.observe(batch)
            torch.save({"model": model.state_dict(), "fpf": fpf.state_dict()}, tmp_path / "state.pt")
        return model, fpf

    (whole, one), (resumed, two) = run([data]), run([data[:13], data[13:]])
    if "every" in settings:
        assert one.finetunings == two.finetunings > 0
    else:
        assert one.finish().loss_after == two.finish().loss_after
    assert one.buffer.draw(8)["y"].tolist() == two.buffer.draw(8)["y"].tolist()
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_buffer_holds_what_was_observed():
    fpf = FPF(llama(), 8)
    fpf.observe(collate([[5, 6, 7], [8, 9]]))
    fpf.observe(collate([[8, 9], [10, 11, 12, 13]], left=True))  # one is a repeat
    drawn = fpf.buffer.draw(8)
    order = drawn["x.input_ids"][:, 0].argsort()
    assert drawn["x.input_ids"][order].tolist() == [[5, 6, 7, PAD], [8, 9, PAD, PAD], [10, 11, 12, 13]]
    # The label of a first token is never compared with an output.
    assert drawn["y"][order].tolist() == [[-100, 6, 7, -100], [-100, 9, -100, -100], [-100, 11, 12, 13]]


def test_packed_batches_are_observed_as_their_sequences():
    packed = {
        "input_ids": torch.tensor([[5, 6, 7, 8, 9]]),
        "position_ids": torch.tensor([[0, 1, 2, 0, 1]]),
        "labels": torch.tensor([[-100, 6, 7, -100, 9]]),
        "cu_seq_lens_q": torch.tensor([0, 3, 5]),
        "max_length_q": 3,
        "seq_idx": torch.tensor([[0, 0, 0, 1, 1]]),
    }
    fpf = FPF(llama(), 8)
    fpf.observe(packed)
    assert fpf.buffer.columns == ("x.input_ids", "x.position_ids", "y")
    assert sorted(map(tuple, fpf.buffer.draw(2)["x.input_ids"].tolist())) == [(5, 6, 7), (8, 9, PAD)]


def test_masked_prompts_do_not_count():
    model, batch = llama(), collate([sentence(0, start, 8) for start in range(8)])
    batch["labels"][:, :5] = -100
    fpf = FPF(model, 8, policy="reservoir")
    fpf.observe(batch)
    expected = loss_on(model, {name: column[:1] for name, column in batch.items()})
    assert measure(model, fpf.buffer, fpf.objective).loss == pytest.approx(expected, rel=1e-5)


def test_a_loss_that_compares_each_token_with_itself_is_refused():
    def unshifted(logits, y):
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    def shifted(logits, y):
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), y[:, 1:].flatten())

    batch, untrained = next(batches(0, 1)), llama()
    torch.nn.init.zeros_(untrained.lm_head.weight)  # both losses have the same value
    for model in (llama(), untrained):
        with pytest.raises(
            ValueError, match="loss compares the output for each token with that token.* Leave loss out"
        ):
            FPF(model, loss=unshifted).observe(batch)
        FPF(model, loss=shifted).observe(batch)
    ids = torch.tensor([sentence(0, start, 8) for start in range(4)])
    FPF(llama(), loss=unshifted).observe({"input_ids": ids[:, :-1]}, ids[:, 1:])  # the labels are shifted already
    with pytest.raises(ValueError, match="y holds the next tokens, but the network's own loss shifts the labels again"):
        FPF(llama()).observe({"input_ids": ids[:, :-1], "labels": ids[:, 1:]})


def test_batches_without_labels_are_refused():
    batch = next(batches(0, 1))
    del batch["labels"]
    fpf = FPF(llama())
    with pytest.raises(ValueError, match="the batch has no labels: .* input_ids, attention_mask.* mlm=False"):
        fpf.observe(batch)
    with pytest.raises(ValueError, match="the batch has no labels: .* input_ids, attention_mask, labels"):
        fpf.observe(batch | {"labels": None})
    with pytest.raises(ValueError, match="the batch has no labels: y is missing, and x has type Tensor"):
        fpf.remember(batch["input_ids"])
    assert fpf.step == 0


def test_adapters_put_in_after_fpf_was_made_are_reported():
    model, batch = llama(), next(batches(0, 1))
    fpf = FPF(model)
    fpf.remember(batch)
    adapted(model)
    with pytest.raises(ValueError, match="no longer has model.layers.0.self_attn.q_proj.weight, one of 14 tensors"):
        fpf.observe(batch)
    assert fpf.step == 0


def test_masked_labels_are_no_examples():
    fpf = FPF(llama())
    batch = next(batches(0, 1))
    fpf.observe(batch | {"labels": torch.full_like(batch["labels"], -100)})
    fpf.observe(collate([[5], [6]]))  # a single token predicts nothing
    assert len(fpf.buffer) == 0
    with pytest.raises(ValueError, match="holds no example with a label: every y is -100"):
        fpf.finish()


def test_a_vocabulary_that_changed_is_reported():
    batch = collate([sentence(0, 40, 9), sentence(0, 45, 5)])
    with pytest.raises(ValueError, match="input_ids holds tokens from 0 to 52; .* has a vocabulary of 32, .* 0 to 31"):
        FPF(llama(vocabulary=32)).observe(batch)
    fpf = FPF(llama())
    fpf.observe(batch)
    with pytest.raises(ValueError, match="has a vocabulary of 32, so .*: the tokenizer is another, or the vocabulary"):
        FPF(llama(vocabulary=32)).load_state_dict(fpf.state_dict())
    small = FPF(llama(vocabulary=32))
    small.observe(collate([[5, 6, 7]]))
    state = small.state_dict()
    state["buffer"]["staged"] = [fpf.state_dict()["buffer"]["columns"]]  # as on a GPU, where batches still wait
    with pytest.raises(ValueError, match="has a vocabulary of 32, so"):
        small.load_state_dict(state)
    with pytest.raises(ValueError, match="input_ids holds tokens from 0 to 52; .* has a vocabulary of 32"):
        small.remember(batch)
    assert len(small.buffer) == 1
    grown = llama()
    grown.resize_token_embeddings(70, mean_resizing=False)
    resumed = FPF(grown)
    resumed.load_state_dict(fpf.state_dict())
    resumed.observe(collate([[68, 69, 5]]))
    assert len(resumed.buffer) == 3


@pytest.mark.parametrize(("token", "padded"), [(None, 0), (-1, 0), (5, 5), (64, 0)])
def test_padding_is_a_token_of_the_vocabulary(token, padded):
    model = llama()
    model.config.pad_token_id = token
    fpf = FPF(model, 8)
    fpf.observe(collate([[5, 6, 7], [8, 9]]))
    assert sorted(fpf.buffer.draw(2)["x.input_ids"][:, 2].tolist()) == sorted([7, padded])


def test_groups_of_a_llama_are_attention_and_mlp_by_depth():
    layer = "model.layers.{}.{}.weight".format
    attention = [f"self_attn.{name}_proj" for name in "qkvo"]
    mlp = [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    norms = ["input_layernorm", "post_attention_layernorm"]

    def names(layers, parts):
        return tuple(layer(index, part) for index in layers for part in parts)

    found = forgetless.groups(llama(layers=4))
    assert found == {
        "embedding": ("model.embed_tokens.weight",),
        "attention.0-1": names([0, 1], attention),
        "mlp.0-1": names([0, 1], mlp),
        "attention.2": names([2], attention),
        "mlp.2": names([2], mlp),
        "attention.3": names([3], attention),
        "mlp.3": names([3], mlp),
        "norm.affine": (*names(range(4), norms), "model.norm.weight"),
        "head": ("lm_head.weight",),
    }
    assert list(found)[1:5] == ["attention.0-1", "mlp.0-1", "attention.2", "mlp.2"]


def test_a_tied_embedding_is_counted_and_repaired_once():
    model = llama(tied=True)
    found = forgetless.groups(model)
    assert found["head"] == ("model.embed_tokens.weight",)
    assert "embedding" not in found
    profile = FPF(model).profile()
    assert sum(group.parameters for group in profile.groups) == sum(p.numel() for p in model.parameters())
    fpf = FPF(model, groups=["head"], steps=2)
    fpf.observe(next(batches(0, 1)))
    assert fpf.finish().names == ("model.embed_tokens.weight",)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_adapters_are_in_the_groups_of_their_layers():
    found = forgetless.groups(adapted(llama()))
    assert list(found) == ["embedding", "attention.0", "mlp.0", "attention.1", "mlp.1", "norm.affine", "head"]
    prefix = "base_model.model.model.layers.1"
    assert f"{prefix}.self_attn.q_proj.lora_A.default.weight" in found["attention.1"]
    assert f"{prefix}.mlp.up_proj.lora_B.default.weight" in found["mlp.1"]
    model = adapted(llama())
    fpf = FPF(model, steps=1, groups="all")
    fpf.observe(next(batches(0, 1)))
    assert all("lora_" in name for name in fpf.finish().names)


@pytest.mark.parametrize("kind", ["columns", "data set", "loader"])
def test_examples_of_a_finished_model_may_differ_in_length(kind):
    model = llama()
    train(model, FPF(model, steps=1), batches(0, 40))
    sentences = [sentence(0, start, 4 + start % 9) for start in range(0, 50, 2)]
    examples = {
        "columns": collate(sentences),
        "data set": [{"input_ids": tokens, "labels": tokens} for tokens in sentences],
        "loader": [collate(sentences[start : start + 5]) for start in range(0, 25, 5)],
    }[kind]
    report = forgetless.repair(model, examples, steps=20)
    assert report.examples == 25
    assert report.accuracy_before is None
    assert report.perplexity_after == pytest.approx(math.exp(report.loss_after))
    assert report.loss_after <= report.loss_before


def test_examples_without_labels_are_refused():
    ids = torch.tensor([sentence(0, start, 6) for start in range(20)])
    with pytest.raises(ValueError, match="no labels; name theirs y or labels. Those of a causal language model"):
        forgetless.repair(llama(), {"input_ids": ids})
    with pytest.raises(ValueError, match="examples has no labels: all 20 are -100"):
        forgetless.repair(llama(), {"input_ids": ids, "labels": torch.full_like(ids, -100)})


def test_examples_with_masked_labels_are_left_out():
    batch = collate([sentence(0, start, 5 + start % 3) for start in range(30)])
    batch["labels"][:10] = -100
    assert forgetless.repair(llama(layers=1), batch, steps=10).examples == 20
    with pytest.raises(ValueError, match="examples has no labels that its 20 examples predict: each is a single token"):
        forgetless.repair(llama(), collate([[5]] * 20))


def test_a_model_that_classifies_sequences_finds_their_last_token():
    from transformers import LlamaForSequenceClassification

    model = LlamaForSequenceClassification(llama().config)
    fpf = FPF(model, 16, policy="reservoir")
    classes = torch.tensor([0, 1])
    for first, second in ((4, 7), (9, 3), (5, 6), (8, 11)):
        batch = collate([sentence(0, first, first), sentence(1, second, second)])
        del batch["labels"]
        fpf.observe(batch, classes)
    rows = fpf.buffer.draw(8)
    inputs = {"input_ids": rows["x.input_ids"], "attention_mask": rows["x.attention_mask"]}
    together = model.eval()(**inputs).logits
    for ids, mask, logits in zip(*inputs.values(), together, strict=True):
        alone = model(input_ids=ids[None, : mask.sum()]).logits[0]
        torch.testing.assert_close(alone, logits, rtol=1e-4, atol=1e-5)
    assert measure(model, fpf.buffer, fpf.objective).accuracy is not None
