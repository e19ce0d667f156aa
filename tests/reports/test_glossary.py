from forgetless.config.catalogue import METHODS
from forgetless.reports.glossary import glossary, meaning, term, with_links


def test_every_method_is_explained():
    assert [name for name in METHODS if not meaning(name)] == []
    assert (term("derpp"), term("mine:Method")) == ("DER++", "mine:Method")


def test_names_are_links_and_other_text_is_escaped():
    text = with_links("fpf+derpp & <server>")
    assert text.count("<a ") == 2
    assert 'href="#term-DER-2b-2b"' in text
    assert text.endswith(">derpp</a> &amp; &lt;server&gt;")


def test_the_glossary_has_only_the_names_that_occur():
    listed = glossary('<p class="joint">k-fpf-kd and S_g, 3 ± 1</p>')
    assert [name for name in ("k-FPF", "KD", "S_g", "±", "FPF", "joint", "ER") if f">{name}</dt>" in listed] == [
        "k-FPF", "KD", "S_g", "±",
    ]  # fmt: skip
